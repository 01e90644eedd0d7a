// Writes tiny checkpoints in the format of NVIDIA ModelOpt.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/synthetic_checkpoint.h"

namespace moracle::testing {

/// Every linear layer as e4m3, with the scales of `algorithm`. All matrices are [side, side];
/// `side` is at most 128 and a multiple of 32.
inline SyntheticCheckpoint modelopt(const std::string& algorithm, int64_t side = 64) {
  auto checkpoint = SyntheticCheckpoint::plain({.layers = 1,
                                                .experts = 2,
                                                .hidden = side,
                                                .intermediate = side,
                                                .heads = side / 16,
                                                .kv_heads = side / 16});
  checkpoint.quantization() = {{"quant_method", "modelopt"},
                               {"quant_algo", algorithm},
                               {"ignore", {"lm_head", "model.layers.0.mlp.gate"}}};
  size_t seed = 0;
  for (const auto& [tensor, value] : std::map(checkpoint.tensors)) {
    if (!tensor.ends_with("_proj.weight")) continue;
    const std::string scale = tensor + "_scale";
    std::vector<uint8_t> codes(side * side), exponents(side * side / 32);
    for (uint8_t& code : codes) {
      code = static_cast<uint8_t>(seed % 127 + seed / 127 % 2 * 128);
      ++seed;
    }
    for (uint8_t& exponent : exponents) exponent = static_cast<uint8_t>(110 + seed++ % 20);
    std::vector<float> scales(side);
    for (float& s : scales) s = 0.001f * static_cast<float>(1 + seed++ % 97);
    checkpoint.add(tensor, DType::kF8E4M3, {side, side}, codes);
    if (algorithm == "MXFP8") checkpoint.add(scale, DType::kU8, {side, side / 32}, exponents);
    if (algorithm == "FP8_PER_CHANNEL_PER_TOKEN")
      checkpoint.add(scale, DType::kF32, {side}, scales);
    scales.resize(1);
    if (algorithm == "FP8") {
      const std::string module = tensor.substr(0, tensor.size() - 7);
      checkpoint.add(scale, DType::kF32, {}, scales);
      checkpoint.add(module + ".input_scale", DType::kF32, {}, scales);
    }
    if (algorithm.starts_with("FP8_PB") || algorithm == "FP8_BLOCK_SCALES") {
      checkpoint.add(scale, DType::kF32, {1, 1, 1, 1}, scales);
    }
  }
  return checkpoint;
}

}  // namespace moracle::testing
