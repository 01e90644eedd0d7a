// Tiny quantized models with adapters for every linear layer, and the same models in f32.
#pragma once

#include <array>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/producers/ct_synthetic.h"
#include "models/golden_model.h"
#include "quant/codec.h"
#include "support/must.h"

namespace moracle::testing {

inline constexpr SyntheticSize kAdaptedSize = {
    .layers = 2, .experts = 4, .hidden = 64, .intermediate = 32, .heads = 4, .kv_heads = 2};

/// The names of adapted_checkpoint().
inline const char* const kAdaptedForms[] = {"int4", "int8", "int8_weights", "fp8_block", "mxfp4"};

/// Modules of one model with their sizes.
struct AdaptedModule {
  std::string name;
  int64_t n, k;
};
inline std::vector<AdaptedModule> adapted_modules(const SyntheticCheckpoint& plain) {
  std::vector<AdaptedModule> modules;
  for (const auto& [name, tensor] : plain.tensors) {
    if (!name.ends_with("_proj.weight")) continue;
    modules.push_back({name.substr(0, name.size() - 7), tensor.shape[0], tensor.shape[1]});
  }
  return modules;
}

/// A model with random codes, whose weights are about as large as those of plain().
inline SyntheticCheckpoint adapted_checkpoint(const std::string& form) {
  auto checkpoint = SyntheticCheckpoint::plain(kAdaptedSize);
  CtModule module{.format = "pack-quantized", .group_size = 32};
  float size = 0.5f;
  if (form == "int8") module = ct_int8("channel", "token"), size = 1.0f / 32;
  if (form == "int8_weights") module = ct_int8("channel", ""), size = 1.0f / 32;
  if (form == "fp8_block") module = ct_fp8("block", "group"), size = 1.0f / 64;
  module.block_cols = 32;  // which every backend serves
  nlohmann::json group = ct_group(module, {"Linear"});
  std::string format = module.format;
  CtWriter writer(checkpoint);
  for (const auto& [name, n, k] : adapted_modules(checkpoint)) {
    if (form == "mxfp4") {
      checkpoint.remove(name + ".weight");
      std::vector<uint8_t> codes(n * k / 2), scales(n * k / 32);
      for (size_t i = 0; i < codes.size(); ++i)
        codes[i] = static_cast<uint8_t>(i * 37 + i / 13 * 101 + name.size());
      for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(121 + i % 3);
      checkpoint.add(name + ".weight_packed", DType::kU8, {n, k / 2}, codes);
      checkpoint.add(name + ".weight_scale", DType::kU8, {n, k / 32}, scales);
      continue;
    }
    writer.add(name, n, k, module);
    TensorBytes& scales = checkpoint.at(name + ".weight_scale");
    for (size_t i = 0; i < scales.bytes.size() / 2; ++i) {
      const float scale = bf16_to_float(checkpoint.get<uint16_t>(scales.name, i));
      checkpoint.set<uint16_t>(scales.name, i, float_to_bf16(scale * size));
    }
  }
  if (form == "mxfp4") {
    format = "mxfp4-pack-quantized";
    group["weights"] = {{"num_bits", 4},    {"type", "float"},   {"strategy", "group"},
                        {"group_size", 32}, {"symmetric", true}, {"dynamic", false}};
    group["input_activations"] = nullptr;
  }
  checkpoint.quantization() = {{"quant_method", "compressed-tensors"},
                               {"format", format},
                               {"ignore", {"lm_head", "re:.*mlp\\.gate$"}},
                               {"config_groups", {{"group_0", group}}}};
  return checkpoint;
}

/// The same model with its weights as f32.
inline SyntheticCheckpoint dequantized(const SyntheticCheckpoint& quantized) {
  auto plain = SyntheticCheckpoint::plain(kAdaptedSize);
  const Checkpoint opened = must(quantized.open());
  const auto store = [&](const DescribedMatrix& described, int64_t e,
                         const std::vector<std::string>& modules) {
    const CanonicalMatrix matrix = must(described.expert(e));
    const std::vector<int64_t> rows = described.source_rows();
    std::vector<double> row(matrix.k);
    int64_t from = 0;
    for (size_t i = 0; i < modules.size(); ++i) {
      std::vector<float> values;
      for (int64_t r = 0; r < rows[i]; ++r) {
        dequantize_row(matrix, from++, row.data());
        values.insert(values.end(), row.begin(), row.end());
      }
      plain.add(modules[i] + ".weight", DType::kF32, {rows[i], matrix.k}, values);
    }
  };
  for (int64_t l = 0; l < kAdaptedSize.layers; ++l) {
    const DescribedWeights experts = must(opened.moe_layer(l));
    for (int64_t e = 0; e < kAdaptedSize.experts; ++e) {
      const auto module = [&](const char* part) { return SyntheticCheckpoint::expert(l, e, part); };
      store(experts.w13, e, {module("gate_proj"), module("up_proj")});
      store(experts.w2, e, {module("down_proj")});
    }
    for (const char* part : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      const std::string name = str("model.layers.", l, ".self_attn.", part);
      store(must(opened.linear({name})), 0, {name});
    }
  }
  return plain;
}

/// An adapter for experts and attention, as PEFT writes it.
inline void write_adapter_of_all(const TemporaryFolder& folder, float sign) {
  constexpr int64_t kRank = 3;
  std::vector<TensorBytes> tensors;
  const auto add = [&](const std::string& name, int64_t rows, int64_t cols, float factor) {
    std::vector<float> values(rows * cols);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = factor * static_cast<float>(static_cast<int>((i * 7 + name.size() * 3) % 11) - 5);
    tensors.push_back({"base_model.model." + name, DType::kF32, {rows, cols}, bytes_of(values)});
  };
  for (const auto& [name, n, k] : adapted_modules(SyntheticCheckpoint::plain(kAdaptedSize))) {
    add(name + ".lora_A.weight", kRank, k, 0.03f);
    add(name + ".lora_B.weight", n, kRank, 0.03f * sign);
  }
  must(write_safetensors(folder.path() + "/adapter_model.safetensors", tensors));
  folder.write("adapter_config.json", R"({"peft_type": "LORA", "r": 3, "lora_alpha": 6})");
}

/// The logits of one step with three sequences of equal tokens: adapters 0, none and 1.
inline std::array<std::vector<float>, 3> adapted_logits(Model& model) {
  const std::vector<int32_t> ids = {1, 5, 9, 2, 17, 3, 20};
  const auto count = static_cast<int64_t>(ids.size());
  KvCache caches[] = {must(model.make_cache(count)), must(model.make_cache(count)),
                      must(model.make_cache(count))};
  const Model::Step steps[] = {{ids, &caches[0], 0}, {ids, &caches[1], -1}, {ids, &caches[2], 1}};
  must(model.forward(steps));
  std::array<std::vector<float>, 3> all;
  for (int64_t s = 0; s < 3; ++s) {
    const auto logits = must(model.logits(s * count, count));
    all[s].assign(logits.begin(), logits.end());
  }
  return all;
}

}  // namespace moracle::testing
