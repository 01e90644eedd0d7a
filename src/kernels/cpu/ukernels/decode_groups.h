// The walk over groups of code lines, shared by the decoders of every instruction set. It is in an
// anonymous namespace, for the reason given in simd/vector.h.
#pragma once

#include "kernels/cpu/ukernels/ukernels.h"

namespace moracle::cpu {
namespace {

/// Calls body for one group after another; each code line decodes to kLines lines.
template <int kLines, class Body>
[[gnu::always_inline]] inline void each_group(const LineCodes& c, const Body& body) {
  const int64_t step = c.group_lines == 0 ? c.lines : c.group_lines;
  LineCodes group = c;
  for (int64_t first = 0; first < c.lines; first += step) {
    group.lines = c.lines - first < step ? c.lines - first : step;
    body(group);
    group.codes += step * kLineBytes;
    group.to += step * kLines * kLineBytes;
    if (c.zero != nullptr) group.zero += kLineRows;
    if (c.exponent != nullptr) group.exponent += c.exponent_lanes;
  }
}

/// Decodes to f32 through bf16, which holds every code exactly; each code line gives kLines lines
/// of bf16. `kWiden` widens them and applies the scales.
template <int kLines, void (*kToBf16)(const LineCodes&), void (*kWiden)(const LineCodes&)>
void to_f32(const LineCodes& c) {
  alignas(64) std::byte exact[kMaxCodeLines * kLines * kLineBytes];
  LineCodes codes = c;
  codes.to = exact;
  kToBf16(codes);
  kWiden({.codes = exact, .lines = c.lines * kLines, .to = c.to, .scale = c.scale});
}

}  // namespace
}  // namespace moracle::cpu
