// Synthetic checkpoints in MXFP4 and NVFP4, in the forms of compressed-tensors and ModelOpt.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/synthetic_checkpoint.h"

namespace moracle::testing::fp4 {

inline constexpr int64_t kSide = 64;

struct Form {
  std::string format;  // of compressed-tensors, or an algorithm of ModelOpt
  bool quantized_activations = false;

  bool modelopt() const { return format == "NVFP4" || format == "W4A16_NVFP4"; }
  bool nvfp4() const { return format.find("nvfp4") != format.npos || modelopt(); }
  int64_t group() const { return nvfp4() ? 16 : 32; }
  bool asks_for_activations() const { return format == "NVFP4" || quantized_activations; }
  std::string codes() const { return modelopt() ? ".weight" : ".weight_packed"; }
  std::string global() const { return modelopt() ? ".weight_scale_2" : ".weight_global_scale"; }
};

inline nlohmann::json config_of(const Form& form) {
  if (form.modelopt()) {
    return {{"quant_method", "modelopt"},
            {"quant_algo", form.format},
            {"group_size", 16},
            {"ignore", {"lm_head", "model.layers.0.mlp.gate"}}};
  }
  using nlohmann::json;
  json weights = {{"num_bits", 4},     {"type", "float"},
                  {"symmetric", true}, {"strategy", form.nvfp4() ? "tensor_group" : "group"},
                  {"dynamic", false},  {"group_size", form.group()}};
  json activations;
  if (form.quantized_activations) {
    activations = weights;
    activations["dynamic"] = form.nvfp4() ? json("local") : json(true);
  }
  return {
      {"quant_method", "compressed-tensors"},
      {"format", form.format},
      {"ignore", {"lm_head", "re:.*mlp\\.gate$"}},
      {"config_groups",
       {{"group_0",
         {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", activations}}}}}};
}

inline SyntheticCheckpoint checkpoint_of(const Form& form) {
  auto checkpoint = SyntheticCheckpoint::plain({.layers = 1,
                                                .experts = 2,
                                                .hidden = kSide,
                                                .intermediate = kSide,
                                                .heads = kSide / 16,
                                                .kv_heads = kSide / 16});
  checkpoint.quantization() = config_of(form);
  size_t seed = 0;
  for (const auto& [tensor, value] : std::map(checkpoint.tensors)) {
    if (!tensor.ends_with("_proj.weight")) continue;
    const std::string module = tensor.substr(0, tensor.size() - 7);
    checkpoint.remove(tensor);
    std::vector<uint8_t> codes(kSide * kSide / 2), scales(kSide * kSide / form.group());
    for (uint8_t& code : codes) code = static_cast<uint8_t>(seed++ * 37 % 256);
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(60 + seed++ * 11 % 60);
    checkpoint.add(module + form.codes(), DType::kU8, {kSide, kSide / 2}, codes);
    const DType dtype = form.nvfp4() ? DType::kF8E4M3 : DType::kU8;
    checkpoint.add(module + ".weight_scale", dtype, {kSide, kSide / form.group()}, scales);
    const std::vector<float> number = {3.0f + static_cast<float>(seed++ % 7)};
    if (form.nvfp4()) {
      const auto shape = form.modelopt() ? std::vector<int64_t>{} : std::vector<int64_t>{1};
      checkpoint.add(module + form.global(), DType::kF32, shape, number);
      if (form.modelopt()) checkpoint.add(module + ".input_scale", DType::kF32, {}, number);
      if (form.quantized_activations)
        checkpoint.add(module + ".input_global_scale", DType::kF32, {1}, number);
    }
  }
  return checkpoint;
}

}  // namespace moracle::testing::fp4
