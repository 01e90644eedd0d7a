// A model described from its checkpoint: every tensor named, checked and claimed, none read.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "moracle/checkpoint.h"

namespace moracle {

/// The numbers of a decoder: norm → attention → norm → experts or MLP, layer after layer.
struct DecoderSpec {
  int64_t hidden_size = 0;
  int64_t vocab_size = 0;
  int64_t max_context = 0;
  float norm_epsilon = 1e-6f;
  Activation activation = Activation::kSilu;  ///< of dense MLPs
  bool operator==(const DecoderSpec&) const = default;
};

/// How queries and keys turn with the position.
struct Rotary {
  std::vector<float> frequencies;  ///< radians per position, one for each pair of columns
  float factor = 1;                ///< multiplies sine and cosine
  bool interleaved = false;        ///< pairs (2i, 2i + 1) instead of (i, i + half)
  bool operator==(const Rotary&) const = default;
};

/// Attention whose keys and values several heads share.
struct GroupedQuerySpec {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  ///< a token sees itself and window - 1 before it; 0: all
  float norm_epsilon = 1e-6f;
  Rotary rotary;  ///< of the first columns of each head
  bool operator==(const GroupedQuerySpec&) const = default;
};
struct GroupedQueryDescription {
  GroupedQuerySpec spec;
  std::vector<float> q_norm;  ///< [head_dim]; empty: none
  std::vector<float> k_norm;  ///< [head_dim]
  std::vector<float> sinks;   ///< [num_heads]; empty: none
  DescribedMatrix qkv;        ///< q, k, v stacked: they read one input
  DescribedMatrix o;
};

/// Multi-head latent attention: queries, and keys and values, come from vectors of low rank; part
/// of each key turns with the position and is the same for all heads.
struct LatentSpec {
  int64_t num_heads = 0;
  int64_t q_rank = 0;  ///< 0: queries come from the hidden state itself
  int64_t kv_rank = 0;
  int64_t nope_dim = 0;  ///< columns of a query or key that do not turn; they come first
  int64_t rope_dim = 0;  ///< columns that do
  int64_t value_dim = 0;
  float scale = 1;             ///< of the scores
  float norm_epsilon = 1e-6f;  ///< of the latent vectors
  Rotary rotary;
  int64_t head_dim() const { return nope_dim + rope_dim; }
  bool operator==(const LatentSpec&) const = default;
};
struct LatentDescription {
  LatentSpec spec;
  std::vector<float> q_norm;           ///< [q_rank]; empty where there is no q_a
  std::vector<float> kv_norm;          ///< [kv_rank]
  std::optional<DescribedMatrix> q_a;  ///< [q_rank, hidden_size]
  DescribedMatrix q;                   ///< [num_heads * head_dim, q_rank or hidden_size]
  DescribedMatrix kv_a;                ///< [kv_rank + rope_dim, hidden_size]
  DescribedMatrix kv_b;                ///< [num_heads * (nope_dim + value_dim), kv_rank]
  DescribedMatrix o;
};

using AttentionDescription = std::variant<GroupedQueryDescription, LatentDescription>;

struct RouterDescription {
  DescribedMatrix weights;
  std::vector<float> correction_bias;  ///< [num_experts], as the routing says; empty: none
};

/// An expert that every token goes to, beside those that it is routed to.
struct SharedExpertDescription {
  DescribedWeights mlp;
  std::optional<DescribedMatrix> gate;  ///< [1, hidden_size]: its sigmoid weighs; nothing: 1
};

struct LayerDescription {
  std::vector<float> input_norm;  ///< [hidden_size]
  std::vector<float> post_norm;   ///< [hidden_size], before the experts
  AttentionDescription attention;
  std::optional<RouterDescription> router;  ///< nothing in a dense layer
  DescribedWeights mlp;  ///< the experts; a dense MLP is one expert that every token goes to
  std::optional<SharedExpertDescription> shared = {};
};

/// Tensors that an architecture knows and this program has no use for.
struct IgnoredPart {
  std::string what;
  int64_t num_tensors = 0;
  int64_t bytes = 0;
};

struct Description {
  DecoderSpec spec;
  DescribedMatrix embedding;  ///< [vocab_size, hidden_size], of floats
  std::vector<LayerDescription> layers;
  std::vector<float> final_norm;
  DescribedMatrix output;  ///< [vocab_size, hidden_size]; the embedding's own tensor where tied
  bool tied = false;
  std::optional<IgnoredPart> ignored = {};

  int64_t embedding_bytes() const {
    return spec.vocab_size * spec.hidden_size * bits(embedding.shape().key.dtype) / 8;
  }
};

/// One row per architecture; its file says how the names and the config map to a Description.
struct Architecture {
  std::string_view name;  ///< config.json's architectures[0]
  Result<Description> (*describe)(const Checkpoint& checkpoint);
};

/// Finds the architecture and describes. Errors: one that is unknown, naming those that are known
/// and what this checkpoint's experts are; a tensor that nothing claims.
Result<Description> describe(const Checkpoint& checkpoint);

/// What a user wants otherwise than the checkpoint has it; see ModelOptions.
struct SchemeChanges {
  std::string quantization, activations;
};
/// The same with linear layers in the schemes that were asked for. Errors beside describe's: what
/// cannot be quantized so.
Result<Description> describe(const Checkpoint& checkpoint, const SchemeChanges& changes);

}  // namespace moracle
