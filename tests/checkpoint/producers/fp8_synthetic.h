// Writes tiny checkpoints with quant_method "fp8".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/synthetic_checkpoint.h"

namespace moracle::testing {

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// The number of scales of a matrix: one for GroupShape{}, one per row for kPerRow, else one per
/// block.
inline std::vector<int64_t> grid(GroupShape group, int64_t n, int64_t k) {
  if (group == GroupShape{}) return {1};
  if (group == kPerRow) return {n, 1};
  return {ceil_div(n, group.rows), ceil_div(k, group.cols)};
}

/// Every linear layer of a plain checkpoint as e4m3, all finite codes in turn, with scales of
/// `group`.
inline SyntheticCheckpoint fp8(GroupShape group) {
  auto checkpoint = SyntheticCheckpoint::plain({.layers = 1});
  const bool blocks = group != GroupShape{} && group != kPerRow;
  checkpoint.quantization() = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}};
  if (blocks) checkpoint.quantization()["weight_block_size"] = {group.rows, group.cols};
  size_t seed = 0;
  for (const auto& [name, tensor] : std::map(checkpoint.tensors)) {
    if (!name.ends_with("_proj.weight")) continue;
    const std::vector<int64_t> shape = tensor.shape, scale_shape = grid(group, shape[0], shape[1]);
    std::vector<uint8_t> codes(shape[0] * shape[1]);
    for (uint8_t& code : codes) {
      code = static_cast<uint8_t>(seed++);
      if ((code & 127) == 127) --code;
    }
    std::vector<float> scales(TensorView{nullptr, DType::kF32, scale_shape}.num_elements());
    for (float& scale : scales) scale = 0.001f * static_cast<float>(1 + seed++ % 97);
    checkpoint.add(name, DType::kF8E4M3, shape, codes);
    checkpoint.add(name + (blocks ? "_scale_inv" : "_scale"), DType::kF32, scale_shape, scales);
  }
  return checkpoint;
}

}  // namespace moracle::testing
