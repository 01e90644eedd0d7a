// The machine's limits, as `moracle bench` measures them, behind C functions.
#include "base/text.h"
#include "c_strings.h"
#include "kernels/cpu/limits/limits.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

using moracle::cpu::LimitsProbe;

namespace {

struct Probe {
  LimitsProbe limits;
  std::vector<moracle::Peak> peaks;
};

}  // namespace

extern "C" {

/// Measures all limits once. Returns null with the error in `text`; else `text` has a line
/// "name=operations per second" for each peak.
Probe* moracle_limits_make(int threads, char* text) {
  auto made = LimitsProbe::make(threads);
  if (!made) return moracle::peers::give_text(made.error().to_string(), text), nullptr;
  auto probe = std::make_unique<Probe>(Probe{std::move(*made), {}});
  probe->peaks = probe->limits.measure()->peaks;
  std::string lines;
  for (const moracle::Peak& peak : probe->peaks)
    lines += moracle::str(peak.name, "=", peak.ops_per_second, "\n");
  moracle::peers::give_text(lines, text);
  return probe.release();
}

double moracle_limits_read_bytes_per_second(Probe* probe) {
  return *probe->limits.read_bytes_per_second();
}

double moracle_limits_ops_per_second(Probe* probe, const char* peak) {
  return *probe->limits.ops_per_second(peak);
}

/// The highest tile palette that CPUID reports. 0 if it reports none, as in guests whose hypervisor
/// exposes AMX but not that leaf.
int moracle_tile_palettes() {
#ifdef __x86_64__
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(0x1d, 0, &eax, &ebx, &ecx, &edx)) return static_cast<int>(eax);
#endif
  return 0;
}

void moracle_limits_free(Probe* probe) {
  delete probe;
}

}  // extern "C"
