// Translations from GGUF that several families share: what their tables cannot express.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf/convention.h"

namespace moracle {

/// One table of several.
template <class T, size_t... N>
consteval auto joined(const T (&... tables)[N]) {
  std::array<T, (N + ...)> all{};
  size_t at = 0;
  const auto append = [&](const auto& table) {
    for (const T& row : table) all[at++] = row;
  };
  (append(tables), ...);
  return all;
}

/// Experts under Mixtral's names.
inline constexpr GgufTensor kBlockSparseGgufTensors[] = {
    {"blk.{L}.ffn_gate_inp", "model.layers.{L}.block_sparse_moe.gate"},
    {"blk.{L}.ffn_gate_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.w1"},
    {"blk.{L}.ffn_up_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.w3"},
    {"blk.{L}.ffn_gate_up_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.w1",
     "model.layers.{L}.block_sparse_moe.experts.{E}.w3"},
    {"blk.{L}.ffn_down_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.w2"},
};

/// The whole key: "deepseek2.attention.key_length" for "attention.key_length".
std::string gguf_key(const GgufModel& model, std::string_view key);
/// A whole number in [min, 2^20]. Errors: absent, or another value.
Result<int64_t> gguf_integer(const GgufModel& model, std::string_view key, int64_t min = 1);
/// nullopt if the file has no such key.
Result<std::optional<int64_t>> gguf_optional(const GgufModel& model, std::string_view key,
                                             int64_t min = 1);

/// True if a stored tensor's name ends so: "attn_q.bias" in any layer.
bool has_stored(const Tensors& stored, std::string_view ending);
bool gguf_has(const GgufModel& model, std::string_view ending);
/// The f32 values of a stored tensor. Errors: absent; another type.
Result<std::vector<float>> gguf_values(const GgufModel& model, const std::string& tensor);

/// Errors (kUnsupported): `expert_gating_func` is another one; absent is accepted.
enum class GgufGating : uint8_t { kSoftmax = 1, kSigmoid = 2 };
Status require_gating(const GgufModel& model, GgufGating gating);

/// Errors (kUnsupported): expert_weights_norm is not true.
Status require_renormalized(const GgufModel& model);

/// Keys of families whose layers with a window have a RoPE of their own, without YaRN.
inline constexpr GgufKey kWindowedGgufKeys[] = {
    {"attention.key_length", "head_dim"},
    {"attention.value_length", "head_dim", false, true},
    {"attention.sliding_window", "sliding_window", false},
    {"rope.freq_base", "rope_parameters.full_attention.rope_theta"},
    {"rope.freq_base_swa", "rope_parameters.sliding_attention.rope_theta", false},
    {"rope.scaling.type", "rope_parameters.full_attention.rope_type", false},
    {"rope.scaling.factor", "rope_parameters.full_attention.factor", false},
    {"rope.scaling.original_context_length",
     "rope_parameters.full_attention.original_max_position_embeddings", false},
    {"rope.scaling.yarn_attn_factor", "rope_parameters.full_attention.attention_factor", false},
    {"rope.scaling.yarn_beta_fast", "rope_parameters.full_attention.beta_fast", false},
    {"rope.scaling.yarn_beta_slow", "rope_parameters.full_attention.beta_slow", false},
};
/// What no table can express of them: a missing base and the rotated parts of heads, from
/// rope.dimension_count and rope.dimension_count_swa.
Status set_windowed_rotary(GgufModel& model);
/// mlp_layer_types: dense up to leading_dense_block_count.
Status set_leading_dense(GgufModel& model);

/// mlp_layer_types and first_k_dense_replace: layers without tensors of experts are dense.
void set_layers_without_experts(GgufModel& model);

/// GGUF stores norms as they multiply: 1 added to what the family reads.
void subtract_one(std::span<float> values);
void add_one(std::span<float> values);

/// partial_rotary_factor from rope.dimension_count and the size of heads.
Status set_partial_rotary(GgufModel& model);
/// Divisors of the rotary frequencies from rope_freqs.weight, if the file has it.
Status set_rotary_divisors(GgufModel& model);
/// attention_bias: true if any layer has one.
void set_attention_bias(GgufModel& model);
/// Windows from attention.sliding_window_pattern: one boolean for each layer, or a number n: every
/// n-th layer has none. Sets layer_types. `period` counts where the file has no such key; 0: all
/// layers have a window. kFirst: of every n layers, the first one has none. Without
/// attention.sliding_window no layer has one.
enum class GgufUnwindowed : uint8_t { kLast, kFirst };
Status set_layer_types(GgufModel& model, int64_t period,
                       GgufUnwindowed which = GgufUnwindowed::kLast);

/// Gives every tensor whose name ends so another shape of as many elements.
void reshape(GgufModel& model, std::string_view ending,
             const std::function<std::vector<int64_t>(const TensorView& stored)>& shape);
/// Row r of every tensor whose name ends so is row `stored`(r) of the file.
void reorder_rows(GgufModel& model, std::string_view ending,
                  const std::function<int64_t(int64_t row)>& stored);
/// The gate of Qwen's shared expert is a matrix of one row, which GGUF may store as a vector.
void restore_gate_row(GgufModel& model);
/// Undoes the order of llama.cpp's converter for q_proj and k_proj: of each head, it stores the two
/// halves of rotated rows alternately.
Status undo_rotary_order(GgufModel& model);
/// kv_b_proj of MLA from attn_k_b, whose heads are transposed, and attn_v_b.
Status merge_kv_b(GgufModel& model);

/// The keys of DeepSeek's attention and routing that depend on each other.
Status finish_deepseek(GgufModel& model);

}  // namespace moracle
