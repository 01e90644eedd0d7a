// Models of tests in GGUF, as llama.cpp's converter writes them: vectors and routers in f32,
// experts of a layer in one tensor.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/gguf_writer.h"
#include "checkpoint/synthetic_checkpoint.h"

namespace moracle::testing {

/// How the converter names a family's keys and tensors, {L} for the layer and {E} for the expert.
struct GgufForm {
  using Names = std::vector<std::pair<std::string, std::string>>;
  std::string architecture = "qwen3moe";
  Names keys;  ///< behind the architecture, and in config.json
  Names tensors;
  /// Rows of q and k are reordered, so that pairs of columns rotate side by side.
  bool permuted = false;

  static GgufForm qwen3moe() {
    GgufForm form;
    form.keys = {{"block_count", "num_hidden_layers"},
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
                 {"expert_count", "num_local_experts"},
                 {"expert_used_count", "num_experts_per_tok"},
                 {"expert_feed_forward_length", "moe_intermediate_size"}};
    form.tensors = {
        {"token_embd.weight", "model.embed_tokens.weight"},
        {"output_norm.weight", "model.norm.weight"},
        {"output.weight", "lm_head.weight"},
        {"blk.{L}.attn_norm.weight", "model.layers.{L}.input_layernorm.weight"},
        {"blk.{L}.attn_q_norm.weight", "model.layers.{L}.self_attn.q_norm.weight"},
        {"blk.{L}.attn_k_norm.weight", "model.layers.{L}.self_attn.k_norm.weight"},
        {"blk.{L}.attn_q.weight", "model.layers.{L}.self_attn.q_proj.weight"},
        {"blk.{L}.attn_k.weight", "model.layers.{L}.self_attn.k_proj.weight"},
        {"blk.{L}.attn_v.weight", "model.layers.{L}.self_attn.v_proj.weight"},
        {"blk.{L}.attn_output.weight", "model.layers.{L}.self_attn.o_proj.weight"},
        {"blk.{L}.ffn_norm.weight", "model.layers.{L}.post_attention_layernorm.weight"},
        {"blk.{L}.ffn_gate_inp.weight", "model.layers.{L}.mlp.gate.weight"},
        {"blk.{L}.ffn_gate_exps.weight", "model.layers.{L}.mlp.experts.{E}.gate_proj.weight"},
        {"blk.{L}.ffn_up_exps.weight", "model.layers.{L}.mlp.experts.{E}.up_proj.weight"},
        {"blk.{L}.ffn_down_exps.weight", "model.layers.{L}.mlp.experts.{E}.down_proj.weight"}};
    return form;
  }
};

/// A tensor as f32.
inline TensorBytes widened(const TensorBytes& tensor) {
  if (tensor.dtype == DType::kF32) return tensor;
  std::vector<float> values(tensor.bytes.size() / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t word;
    std::memcpy(&word, tensor.bytes.data() + 2 * i, sizeof word);
    values[i] = bf16_to_float(word);
  }
  return {tensor.name, DType::kF32, tensor.shape, bytes_of(values)};
}

/// Rows of each head in the order 0, half, 1, half + 1, …
inline void interleave_rows(TensorBytes& tensor, int64_t heads) {
  const std::vector<std::byte> from = tensor.bytes;
  const int64_t rows = tensor.shape[0] / heads;
  const auto row = static_cast<int64_t>(from.size()) / tensor.shape[0];
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = h * rows + r % 2 * (rows / 2) + r / 2;
      std::memcpy(tensor.bytes.data() + (h * rows + r) * row, from.data() + at * row, row);
    }
  }
}

inline std::string filled(std::string pattern, std::string_view what, int64_t number) {
  const size_t at = pattern.find(what);
  return at == pattern.npos ? pattern : pattern.replace(at, what.size(), std::to_string(number));
}

/// The tensor `pattern` of a layer; with {E}, those of all experts as one. No name if the model has
/// none.
inline TensorBytes gathered(const SyntheticCheckpoint& model, const std::string& pattern) {
  if (pattern.find("{E}") == pattern.npos) {
    const auto found = model.tensors.find(pattern);
    return found == model.tensors.end() ? TensorBytes() : found->second;
  }
  TensorBytes all;
  for (int64_t e = 0;; ++e) {
    const auto found = model.tensors.find(filled(pattern, "{E}", e));
    if (found == model.tensors.end()) return all;
    if (e == 0) all = found->second;
    if (e > 0)
      all.bytes.insert(all.bytes.end(), found->second.bytes.begin(), found->second.bytes.end());
    if (e == 0) all.shape.insert(all.shape.begin(), 0);
    all.shape[0] = e + 1;
  }
}

inline GgufWriter to_gguf(const SyntheticCheckpoint& model,
                          const GgufForm& form = GgufForm::qwen3moe()) {
  const nlohmann::json& config = model.config;
  GgufWriter to;
  to.set("general.architecture", form.architecture);
  to.set("general.name", "synthetic");
  for (const auto& [key, from] : form.keys) {
    if (config.contains(from) && !config[from].is_null())
      to.set(str(form.architecture, ".", key), config[from]);
  }
  to.set("tokenizer.ggml.model", "gpt2");
  const auto num_layers = config["num_hidden_layers"].get<int64_t>();
  for (const auto& [name, published] : form.tensors) {
    const bool in_layers = name.find("{L}") != name.npos;
    for (int64_t l = 0; l < (in_layers ? num_layers : 1); ++l) {
      TensorBytes tensor = gathered(model, filled(published, "{L}", l));
      if (tensor.name.empty()) continue;
      tensor.name = filled(name, "{L}", l);
      const bool is_q = name.find("attn_q.") != name.npos;
      if (form.permuted && (is_q || name.find("attn_k.") != name.npos))
        interleave_rows(tensor, config[is_q ? "num_attention_heads" : "num_key_value_heads"]);
      const bool is_router = name.find("ffn_gate_inp") != name.npos;
      to.tensors.push_back(tensor.shape.size() == 1 || is_router ? widened(tensor) : tensor);
    }
  }
  return to;
}

}  // namespace moracle::testing
