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
inline SyntheticCheckpoint fp8(GroupShape group, const SyntheticSize& size = {.layers = 1}) {
  auto checkpoint = SyntheticCheckpoint::plain(size);
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

/// The same model, but each projection of all experts is one tensor, with e as first index; gate
/// is above up. The blocks must divide the rows of both, and a scale for the tensor be that of the
/// gate.
inline SyntheticCheckpoint fp8_stacked(GroupShape group,
                                       const SyntheticSize& size = {.layers = 1}) {
  const SyntheticCheckpoint split = fp8(group, size);
  SyntheticCheckpoint stacked = split;
  std::erase_if(stacked.tensors, [](const auto& tensor) {
    return tensor.first.find(".experts.") != tensor.first.npos;
  });
  const bool blocks = group != GroupShape{} && group != kPerRow;
  const std::string scale = blocks ? "_scale_inv" : "_scale";
  const auto add = [&](const std::string& name, std::initializer_list<const char*> parts,
                       DType dtype, bool all_parts) {
    TensorBytes all{name, dtype, {}, {}};
    for (int64_t e = 0; e < size.experts; ++e) {
      int64_t rows = 0;
      for (const char* part : parts) {
        const TensorBytes& one = split.tensors.at(SyntheticCheckpoint::expert(0, e, part));
        all.shape = one.shape;
        if (rows > 0 && !all_parts) continue;
        all.bytes.insert(all.bytes.end(), one.bytes.begin(), one.bytes.end());
        rows += one.shape[0];
      }
      all.shape[0] = rows;
    }
    all.shape.insert(all.shape.begin(), size.experts);
    stacked.tensors[name] = std::move(all);
  };
  const std::string experts = "model.layers.0.mlp.experts.";
  add(experts + "gate_up_proj", {"gate_proj.weight", "up_proj.weight"}, DType::kF8E4M3, true);
  add(experts + "down_proj", {"down_proj.weight"}, DType::kF8E4M3, true);
  const std::string gate = "gate_proj.weight" + scale, up = "up_proj.weight" + scale;
  add(experts + "gate_up_proj" + scale, {gate.c_str(), up.c_str()}, DType::kF32,
      group != GroupShape{});
  const std::string down = "down_proj.weight" + scale;
  add(experts + "down_proj" + scale, {down.c_str()}, DType::kF32, true);
  return stacked;
}

}  // namespace moracle::testing
