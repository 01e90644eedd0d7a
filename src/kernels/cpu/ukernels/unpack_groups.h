// The loop over groups of codes, shared by the unpack kernels of every instruction set. It is
// in an anonymous namespace, for the reason given in simd/vector.h.
#pragma once

#include "kernels/cpu/ukernels/args.h"

namespace moracle::cpu {
namespace {

/// Calls body for one group after another; each code row block unpacks to kBlocks row blocks.
template <int kBlocks, class Body>
[[gnu::always_inline]] inline void each_group(const UnpackBlocksArgs& c, const Body& body) {
  const int64_t step = c.group_blocks == 0 ? c.blocks : c.group_blocks;
  UnpackBlocksArgs group = c;
  for (int64_t first = 0; first < c.blocks; first += step) {
    group.blocks = c.blocks - first < step ? c.blocks - first : step;
    body(group);
    group.codes += step * kRowBlockBytes;
    group.to += step * kBlocks * kRowBlockBytes;
    if (c.zero != nullptr) group.zero += kPanelRows;
    if (c.exponent != nullptr) group.exponent += c.exponent_lanes;
  }
}

/// Unpacks to f32 through bf16, which holds every code exactly; each code row block gives kBlocks
/// row blocks of bf16. `kWiden` widens them and applies the scales.
template <int kBlocks, void (*kToBf16)(const UnpackBlocksArgs&),
          void (*kWiden)(const UnpackBlocksArgs&)>
void to_f32(const UnpackBlocksArgs& c) {
  alignas(64) std::byte exact[kMaxCodeBlocks * kBlocks * kRowBlockBytes];
  UnpackBlocksArgs codes = c;
  codes.to = exact;
  kToBf16(codes);
  kWiden({.codes = exact, .blocks = c.blocks * kBlocks, .to = c.to, .scale = c.scale});
}

}  // namespace
}  // namespace moracle::cpu
