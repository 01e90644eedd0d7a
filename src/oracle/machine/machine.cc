// Detects the hardware that this process can use, through the CPU and the kernel.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "oracle/machine/detect.h"
#include "oracle/machine/masked_isa.h"
#include "oracle/rates/rates.h"

namespace moracle {

namespace {

std::atomic<Isa> masked{Isa::kNone};

#if defined(__x86_64__)
// Linux grants the large AMX tile state only on request (ARCH_REQ_XCOMP_PERM, XTILEDATA). The grant
// covers all threads of the process.
bool may_use_tiles() {
  return ::syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}
#endif

Isa detect_isa() {
  Isa isa = Isa::kNone;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c >> 27 & 1) == 0) return isa;  // no xgetbv
  const unsigned leaf1_c = c;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  const bool ymm = (low & 0x6) == 0x6, zmm = (low & 0xe6) == 0xe6,
             tiles = (low & 0x60000) == 0x60000;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return isa;
  const unsigned b7 = b, c7 = c, d7 = d;
  unsigned a71 = 0;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) a71 = a;
  auto add = [&](bool there, Isa bit) {
    if (there) isa = isa | bit;
  };
  const bool fma_f16c = (leaf1_c >> 12 & 1) && (leaf1_c >> 29 & 1);
  add(ymm && (b7 >> 5 & 1) && fma_f16c, Isa::kAvx2);
  add(ymm && (a71 >> 4 & 1), Isa::kAvxVnni);
  const bool avx512 = zmm && (b7 >> 16 & 1) && (b7 >> 17 & 1) && (b7 >> 30 & 1) && (b7 >> 31 & 1);
  add(avx512, Isa::kAvx512);
  add(avx512 && (c7 >> 11 & 1), Isa::kAvx512Vnni);
  add(avx512 && (a71 >> 5 & 1), Isa::kAvx512Bf16);
  add(avx512 && (d7 >> 23 & 1), Isa::kAvx512Fp16);
  const bool has_tiles = tiles && (d7 >> 24 & 1) && may_use_tiles();
  add(has_tiles && (d7 >> 25 & 1), Isa::kAmxInt8);
  add(has_tiles && (d7 >> 22 & 1), Isa::kAmxBf16);
#endif
  return isa;
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name"))
      return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "unknown CPU";
}

int64_t memory_bytes() {
  const int64_t installed =
      static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  int64_t limit = 0;
  std::ifstream cgroup("/sys/fs/cgroup/memory.max");  // no number, but "max", means no limit
  if (cgroup >> limit && limit > 0) return std::min(limit, installed);
  return installed;
}

// The number after `key` in a file of lines "key number"; 0: none.
int64_t number_in(const char* path, std::string_view key) {
  std::ifstream file(path);
  int64_t value = 0;
  for (std::string word; file >> word;)
    if (word == key && file >> value) return value;
  return 0;
}

}  // namespace

int64_t free_host_memory() {
  const int64_t available = number_in("/proc/meminfo", "MemAvailable:") * 1024;
  int64_t limit = 0, used = 0;
  std::ifstream most("/sys/fs/cgroup/memory.max"), current("/sys/fs/cgroup/memory.current");
  if (!(most >> limit) || !(current >> used)) return available;
  used -= number_in("/sys/fs/cgroup/memory.stat", "inactive_file");
  return std::min(available, std::max<int64_t>(limit - used, 0));
}

Result<int64_t> free_gpu_memory(const GpuInfo& gpu) {
#if defined(MORACLE_WITH_CUDA)
  if (gpu.platform == Platform::kCuda) return free_cuda_memory(gpu.index);
#endif
  return gpu.memory_bytes;
}

void mask_isa(Isa without) {
  masked = with_dependents(without);
}

CpuInfo detect_cpu() {
  return {cpu_model(), missing(detect_isa(), masked.load()), usable_threads(), memory_bytes(), {}};
}

Machine Machine::here() {
  Machine machine;
  machine.name = "here";
  machine.cpu = detect_cpu();
  machine.cpu.rates = measured_rates(machine.cpu.isa);
#if defined(MORACLE_WITH_CUDA)
  detect_cuda(machine);
  if (!machine.gpus.empty()) machine.libraries = detect_libraries();
#endif
#if defined(MORACLE_WITH_OPENCL)
  for (GpuInfo& gpu : detect_opencl()) machine.gpus.push_back(std::move(gpu));
#endif
  return machine;
}

Result<Machine> Machine::find(std::string_view name) {
  if (name == "here") return here();
  std::vector<std::string> known_names = {"here"};
  for (const Machine& machine : known()) {
    if (machine.name == name) return machine;
    known_names.push_back(machine.name);
  }
  return Error{ErrorKind::kInvalidArgument, "", "machine", "one of " + join(known_names),
               str("'", name, "' is unknown")};
}

}  // namespace moracle
