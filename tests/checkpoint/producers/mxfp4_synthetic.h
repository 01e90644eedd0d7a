// Writes tiny checkpoints whose tensors hold all experts of a layer, as MXFP4 and plain.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/synthetic_checkpoint.h"

namespace moracle::testing {

inline constexpr SyntheticSize kFusedSize{
    .layers = 1, .experts = 3, .hidden = 64, .intermediate = 32};
inline const std::string kFusedExperts = "model.layers.0.mlp.experts";

inline SyntheticCheckpoint without_experts(bool gpt_oss) {
  auto checkpoint = SyntheticCheckpoint::plain(kFusedSize);
  std::erase_if(checkpoint.tensors,
                [](const auto& t) { return t.first.starts_with(kFusedExperts); });
  if (gpt_oss) {
    checkpoint.config["architectures"] = {"GptOssForCausalLM"};
    checkpoint.config["model_type"] = "gpt_oss";
  }
  return checkpoint;
}

inline void add_mxfp4(SyntheticCheckpoint& checkpoint, const std::string& module, int64_t n,
                      int64_t k) {
  const int64_t experts = kFusedSize.experts;
  std::vector<uint8_t> blocks(experts * n * k / 2), scales(experts * n * k / 32);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<uint8_t>(i * 37 + i / 256);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(100 + i % 50);
  checkpoint.add(module + "_blocks", DType::kU8, {experts, n, k / 32, 16}, blocks);
  checkpoint.add(module + "_scales", DType::kU8, {experts, n, k / 32}, scales);
  checkpoint.add_floats(module + "_bias", {experts, n});
}

inline SyntheticCheckpoint mxfp4(bool gpt_oss = true) {
  auto checkpoint = without_experts(gpt_oss);
  checkpoint.quantization() = {
      {"quant_method", "mxfp4"},
      {"modules_to_not_convert", {"model.layers.*.self_attn", "mlp.router", "lm_head"}}};
  add_mxfp4(checkpoint, kFusedExperts + ".gate_up_proj", 2 * kFusedSize.intermediate,
            kFusedSize.hidden);
  add_mxfp4(checkpoint, kFusedExperts + ".down_proj", kFusedSize.hidden, kFusedSize.intermediate);
  return checkpoint;
}

/// In bf16. In GPT-OSS the matrix of each expert is transposed.
inline SyntheticCheckpoint fused_plain(bool gpt_oss) {
  auto checkpoint = without_experts(gpt_oss);
  const auto add = [&](const std::string& part, int64_t n, int64_t k) {
    const std::string module = kFusedExperts + part;
    checkpoint.add_floats(module, {kFusedSize.experts, gpt_oss ? k : n, gpt_oss ? n : k});
    checkpoint.add_floats(module + "_bias", {kFusedSize.experts, n});
  };
  add(".gate_up_proj", 2 * kFusedSize.intermediate, kFusedSize.hidden);
  add(".down_proj", kFusedSize.hidden, kFusedSize.intermediate);
  return checkpoint;
}

}  // namespace moracle::testing
