// Writes GGUF files for tests, in the order of the calls. Every number of the header is recorded,
// so that a test can change each of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "checkpoint/synthetic_checkpoint.h"

namespace moracle::testing {

class GgufWriter {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;
  /// By key. Integers are stored as u32, floats as f32; an array has the type of its first value.
  std::vector<std::pair<std::string, nlohmann::json>> metadata;
  std::vector<TensorBytes> tensors;

  /// A number of the header: `bytes` bytes at `offset`.
  struct Field {
    std::string what;
    size_t offset = 0;
    size_t bytes = 0;
  };
  struct Image {
    std::string bytes;
    std::vector<Field> fields;
    size_t data = 0;  ///< offset of the first tensor's data
  };

  void set(const std::string& key, nlohmann::json value) {
    for (auto& [name, old] : metadata) {
      if (name == key) return void(old = std::move(value));
    }
    metadata.emplace_back(key, std::move(value));
  }
  void remove_key(const std::string& key) {
    std::erase_if(metadata, [&](const auto& pair) { return pair.first == key; });
  }
  void remove(const std::string& tensor) {
    std::erase_if(tensors, [&](const TensorBytes& one) { return one.name == tensor; });
  }
  TensorBytes& at(const std::string& tensor) {
    return *std::find_if(tensors.begin(), tensors.end(),
                         [&](const TensorBytes& one) { return one.name == tensor; });
  }

  Image image() const {
    Image to;
    put(to, "magic", uint32_t{0x46554747});
    put(to, "version", version);
    put(to, "number of tensors", uint64_t{tensors.size()});
    put(to, "number of pairs", uint64_t{metadata.size()});
    for (const auto& [key, value] : metadata) {
      put_text(to, "key " + key, key);
      const uint32_t type = type_of(value);
      put(to, "type of " + key, type);
      if (!value.is_array()) {
        put_value(to, "value of " + key, value);
        continue;
      }
      put(to, "array type of " + key, value.empty() ? 4 : type_of(value[0]));
      put(to, "array length of " + key, uint64_t{value.size()});
      for (const nlohmann::json& one : value) put_value(to, "value in " + key, one);
    }
    uint64_t offset = 0;
    for (const TensorBytes& tensor : tensors) {
      put_text(to, "name " + tensor.name, tensor.name);
      put(to, "rank of " + tensor.name, static_cast<uint32_t>(tensor.shape.size()));
      for (size_t i = tensor.shape.size(); i-- > 0;)
        put(to, "dimension of " + tensor.name, static_cast<uint64_t>(tensor.shape[i]));
      put(to, "type of tensor " + tensor.name, number_of(tensor.dtype));
      put(to, "offset of " + tensor.name, offset);
      offset = padded(offset + tensor.bytes.size());
    }
    to.bytes.resize(padded(to.bytes.size()));
    to.data = to.bytes.size();
    for (const TensorBytes& tensor : tensors) {
      to.bytes.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
      to.bytes.resize(to.data + padded(to.bytes.size() - to.data));
    }
    return to;
  }
  void write(const std::string& path) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << image().bytes;
  }

  /// ggml's number of a type.
  static uint32_t number_of(DType type) {
    static const std::map<DType, uint32_t> kNumbers = {
        {DType::kF32, 0},         {DType::kF16, 1},        {DType::kQ4_0, 2},
        {DType::kQ4_1, 3},        {DType::kQ5_0, 6},       {DType::kQ5_1, 7},
        {DType::kQ8_0, 8},        {DType::kQ2K, 10},       {DType::kQ3K, 11},
        {DType::kQ4K, 12},        {DType::kQ5K, 13},       {DType::kQ6K, 14},
        {DType::kIQ2XXS, 16},     {DType::kIQ2XS, 17},     {DType::kIQ3XXS, 18},
        {DType::kIQ1S, 19},       {DType::kIQ4NL, 20},     {DType::kIQ3S, 21},
        {DType::kIQ2S, 22},       {DType::kIQ4XS, 23},     {DType::kI8, 24},
        {DType::kI16, 25},        {DType::kI32, 26},       {DType::kI64, 27},
        {DType::kF64, 28},        {DType::kIQ1M, 29},      {DType::kBF16, 30},
        {DType::kMxfp4Block, 39}, {DType::kNvfp4Block, 40}};
    return kNumbers.at(type);
  }

 private:
  enum : uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kText = 8, kArray = 9, kU64 = 10 };

  static uint32_t type_of(const nlohmann::json& value) {
    if (value.is_array()) return kArray;
    if (value.is_string()) return kText;
    if (value.is_boolean()) return kBool;
    if (value.is_number_float()) return kF32;
    if (value.is_number_integer() && value < 0) return kI32;
    return value > UINT32_MAX ? kU64 : kU32;
  }
  uint64_t padded(uint64_t bytes) const { return (bytes + alignment - 1) / alignment * alignment; }

  template <class T>
  static void put(Image& to, const std::string& what, T value) {
    to.fields.push_back({what, to.bytes.size(), sizeof value});
    to.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void put_text(Image& to, const std::string& what, const std::string& text) {
    put(to, "length of " + what, uint64_t{text.size()});
    to.bytes += text;
  }
  static void put_value(Image& to, const std::string& what, const nlohmann::json& value) {
    switch (type_of(value)) {
      case kText:
        return put_text(to, what, value.get<std::string>());
      case kBool:
        return put(to, what, static_cast<uint8_t>(value.get<bool>()));
      case kF32:
        return put(to, what, value.get<float>());
      case kU64:
        return put(to, what, value.get<uint64_t>());
      case kI32:
        return put(to, what, value.get<int32_t>());
      default:
        return put(to, what, value.get<uint32_t>());
    }
  }
};

/// A tensor as f32.
inline TensorBytes widened(const TensorBytes& tensor) {
  std::vector<float> values(tensor.bytes.size() / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t word;
    std::memcpy(&word, tensor.bytes.data() + 2 * i, sizeof word);
    values[i] = bf16_to_float(word);
  }
  return {tensor.name, DType::kF32, tensor.shape, bytes_of(values)};
}

/// The matrices of all experts, as one tensor [experts, rows, columns].
inline TensorBytes stacked(const std::vector<TensorBytes>& experts, const std::string& name) {
  TensorBytes all{name, experts[0].dtype, experts[0].shape, {}};
  all.shape.insert(all.shape.begin(), static_cast<int64_t>(experts.size()));
  for (const TensorBytes& one : experts)
    all.bytes.insert(all.bytes.end(), one.bytes.begin(), one.bytes.end());
  return all;
}

/// SyntheticCheckpoint::plain as llama.cpp's converter writes it: vectors and routers in f32.
inline GgufWriter to_gguf(const SyntheticCheckpoint& model) {
  const nlohmann::json& config = model.config;
  GgufWriter to;
  to.set("general.architecture", "qwen3moe");
  to.set("general.name", "synthetic");
  const std::pair<const char*, const char*> keys[] = {
      {"block_count", "num_hidden_layers"},
      {"context_length", "max_position_embeddings"},
      {"embedding_length", "hidden_size"},
      {"feed_forward_length", "intermediate_size"},
      {"attention.head_count", "num_attention_heads"},
      {"attention.head_count_kv", "num_key_value_heads"},
      {"attention.key_length", "head_dim"},
      {"attention.value_length", "head_dim"},
      {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
      {"rope.freq_base", "rope_theta"},
      {"expert_count", "num_experts"},
      {"expert_used_count", "num_experts_per_tok"},
      {"expert_feed_forward_length", "moe_intermediate_size"}};
  for (const auto& [key, value] : keys) to.set(str("qwen3moe.", key), config[value]);
  to.set("tokenizer.ggml.model", "gpt2");
  const auto add = [&](const std::string& from, const std::string& name, bool widen) {
    TensorBytes tensor = widen ? widened(model.tensors.at(from)) : model.tensors.at(from);
    tensor.name = name;
    to.tensors.push_back(std::move(tensor));
  };
  add("model.embed_tokens.weight", "token_embd.weight", false);
  for (int64_t l = 0; l < config["num_hidden_layers"].get<int64_t>(); ++l) {
    const std::string from = str("model.layers.", l, "."), block = str("blk.", l, ".");
    add(from + "input_layernorm.weight", block + "attn_norm.weight", true);
    add(from + "post_attention_layernorm.weight", block + "ffn_norm.weight", true);
    add(from + "self_attn.q_norm.weight", block + "attn_q_norm.weight", true);
    add(from + "self_attn.k_norm.weight", block + "attn_k_norm.weight", true);
    for (const char* part : {"q", "k", "v"})
      add(str(from, "self_attn.", part, "_proj.weight"), str(block, "attn_", part, ".weight"),
          false);
    add(from + "self_attn.o_proj.weight", block + "attn_output.weight", false);
    add(from + "mlp.gate.weight", block + "ffn_gate_inp.weight", true);
    for (const char* part : {"gate", "up", "down"}) {
      std::vector<TensorBytes> experts;
      for (int64_t e = 0; e < config["num_experts"].get<int64_t>(); ++e)
        experts.push_back(
            model.tensors.at(SyntheticCheckpoint::expert(l, e, str(part, "_proj.weight"))));
      to.tensors.push_back(stacked(experts, str(block, "ffn_", part, "_exps.weight")));
    }
  }
  add("model.norm.weight", "output_norm.weight", true);
  if (model.tensors.contains("lm_head.weight")) add("lm_head.weight", "output.weight", false);
  return to;
}

}  // namespace moracle::testing
