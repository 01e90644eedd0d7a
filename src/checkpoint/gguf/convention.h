// How a model family appears in GGUF files. Opening a GGUF checkpoint translates it: these tables
// give the config.json and the tensor names that the family's reader expects. Each family defines
// its own tables in src/models/families; this folder only applies them.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/config.h"
#include "checkpoint/tensors/tensors.h"
#include "moracle/base.h"

namespace moracle {

/// A metadata key and the key of config.json with the same value. The number of layers, the size of
/// the vocabulary, tied embeddings and the ids of special tokens need no entry. An array with one
/// equal number for each layer counts as the number.
struct GgufKey {
  std::string_view from;  ///< behind the architecture: "attention.head_count"
  std::string_view to;    ///< '.' enters an object: "rope_scaling.factor"
  bool required = true;
  /// The key has no counterpart of its own: if present, it must have the value of `to`.
  bool repeats = false;
};

/// A tensor and the names under which the family reads it. {L} stands for the layer, {E} for the
/// expert. A name without .weight or .bias stands for both, and for the factor .scale of NVFP4
/// blocks.
struct GgufTensor {
  std::string_view from;  ///< "blk.{L}.ffn_gate_exps"
  /// "model.layers.{L}.mlp.experts.{E}.gate_proj". With {E}, each index of the first dimension is
  /// one tensor.
  std::string_view to;
  /// The rows (of each expert) are two halves: `to`, then this one. Empty: only `to`.
  std::string_view second = {};
  /// Changes stored f32 values to those that the family expects: A_log = log(-ssm_a).
  void (*change)(std::span<float> values) = nullptr;
  /// The inverse of `change`, for writing.
  void (*restore)(std::span<float> values) = nullptr;
  /// The stored shape keeps dimensions of 1. GgufConvention::write gives it.
  bool keeps_ones = false;
};

/// A translated file, for GgufConvention::finish.
struct GgufModel {
  const Config& metadata;
  std::string_view architecture;  ///< general.architecture
  nlohmann::json& config;         ///< the translation to config.json's keys
  /// By the names that the family reads. Tensors that no table names keep their stored names.
  std::map<std::string, Tensors::Entry>& tensors;
  /// The tensors as stored, to read numbers that belong to the config.
  const Tensors& stored;
};

/// The content of a file to be written, for GgufConvention::write. The tables, applied backwards,
/// made it from the checkpoint.
struct GgufDraft {
  const Config& config;           ///< config.json's
  std::optional<Config> rope;     ///< the rotary settings in it
  std::string_view architecture;  ///< general.architecture
  int64_t num_layers;
  nlohmann::json& metadata;  ///< by the whole key
  /// The checkpoint's tensors by the names of the tables, except experts. A name of the file,
  /// "blk.0.attn_k_b.weight", is kept.
  std::map<std::string, Tensors::Entry>& tensors;
};

struct GgufConvention {
  std::string_view architecture;  ///< the value of general.architecture
  /// The family's own keys and tensors. They precede those that families share, and the first entry
  /// with a name counts.
  std::span<const GgufKey> keys;
  std::span<const GgufTensor> tensors;
  /// False: kGgufHeadKeys do not apply, because heads of the family differ.
  bool usual_heads = true;
  /// Values of config.json's keys that the architecture fixes, or that the file lacks, as a JSON
  /// object. They take precedence over ExpertConvention::defaults.
  std::string_view constants = "{}";
  /// True if a file of this architecture belongs to this family; null: all do.
  bool (*applies)(const Config& metadata, const Tensors& stored) = nullptr;
  /// Translates what no table can express: keys and tensors that depend on each other.
  Status (*finish)(GgufModel& model) = nullptr;
  /// The inverse of `finish`. It need not invert changes that reading the written file inverts,
  /// such as the order of rows.
  Status (*write)(GgufDraft& draft) = nullptr;
};

/// The keys of nearly every family.
inline constexpr GgufKey kGgufDecoderKeys[] = {
    {"context_length", "max_position_embeddings"},
    {"embedding_length", "hidden_size"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads", false},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"expert_count", "num_experts"},
    {"expert_used_count", "num_experts_per_tok"},
};
/// Further keys of families whose attention has one head size, all of it rotated.
inline constexpr GgufKey kGgufHeadKeys[] = {
    {"attention.key_length", "head_dim", false},
    {"attention.value_length", "head_dim", false, true},
    {"rope.dimension_count", "head_dim", false, true},
    {"rope.freq_base", "rope_theta", false},
    {"rope.scaling.type", "rope_scaling.rope_type", false},
    {"rope.scaling.factor", "rope_scaling.factor", false},
    {"rope.scaling.original_context_length", "rope_scaling.original_max_position_embeddings",
     false},
    {"rope.scaling.yarn_attn_factor", "rope_scaling.attention_factor", false},
    {"rope.scaling.yarn_beta_fast", "rope_scaling.beta_fast", false},
    {"rope.scaling.yarn_beta_slow", "rope_scaling.beta_slow", false},
};
/// The tensors of nearly every family.
inline constexpr GgufTensor kGgufDecoderTensors[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    {"blk.{L}.attn_norm", "model.layers.{L}.input_layernorm"},
    {"blk.{L}.attn_q", "model.layers.{L}.self_attn.q_proj"},
    {"blk.{L}.attn_k", "model.layers.{L}.self_attn.k_proj"},
    {"blk.{L}.attn_v", "model.layers.{L}.self_attn.v_proj"},
    {"blk.{L}.attn_output", "model.layers.{L}.self_attn.o_proj"},
    {"blk.{L}.attn_q_norm", "model.layers.{L}.self_attn.q_norm"},
    {"blk.{L}.attn_k_norm", "model.layers.{L}.self_attn.k_norm"},
    {"blk.{L}.ffn_norm", "model.layers.{L}.post_attention_layernorm"},
    {"blk.{L}.ffn_gate", "model.layers.{L}.mlp.gate_proj"},
    {"blk.{L}.ffn_up", "model.layers.{L}.mlp.up_proj"},
    {"blk.{L}.ffn_down", "model.layers.{L}.mlp.down_proj"},
    {"blk.{L}.ffn_gate_inp", "model.layers.{L}.mlp.gate"},
    {"blk.{L}.ffn_gate_exps", "model.layers.{L}.mlp.experts.{E}.gate_proj"},
    {"blk.{L}.ffn_up_exps", "model.layers.{L}.mlp.experts.{E}.up_proj"},
    {"blk.{L}.ffn_gate_up_exps", "model.layers.{L}.mlp.experts.{E}.gate_proj",
     "model.layers.{L}.mlp.experts.{E}.up_proj"},
    {"blk.{L}.ffn_down_exps", "model.layers.{L}.mlp.experts.{E}.down_proj"},
    // The layer for multi-token prediction, behind the last one.
    {"blk.{L}.nextn.eh_proj", "model.layers.{L}.eh_proj"},
    {"blk.{L}.nextn.enorm", "model.layers.{L}.enorm"},
    {"blk.{L}.nextn.hnorm", "model.layers.{L}.hnorm"},
    {"blk.{L}.nextn.embed_tokens", "model.layers.{L}.embed_tokens"},
    {"blk.{L}.nextn.shared_head_head", "model.layers.{L}.shared_head.head"},
    {"blk.{L}.nextn.shared_head_norm", "model.layers.{L}.shared_head.norm"},
};

}  // namespace moracle
