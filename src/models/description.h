// A model described from its checkpoint: every tensor named, checked and claimed, none read.
#pragma once

#include <optional>
#include <vector>

#include "moracle/checkpoint.h"

namespace moracle {

/// The numbers of a decoder: norm → attention → norm → experts or MLP, layer after layer.
struct DecoderSpec {
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_context = 0;
  float norm_epsilon = 1e-6f;
  double rope_theta = 10'000;
};

struct LayerDescription {
  std::vector<float> input_norm;  ///< [hidden_size]
  std::vector<float> post_norm;   ///< [hidden_size], before the experts
  std::vector<float> q_norm;      ///< [head_dim]; empty: none
  std::vector<float> k_norm;      ///< [head_dim]
  DescribedMatrix qkv;            ///< q, k, v stacked: they read one input
  DescribedMatrix o;
  std::optional<DescribedMatrix> router;  ///< nothing in a dense layer
  DescribedWeights mlp;  ///< the experts; a dense MLP is one expert that every token goes to
};

struct Description {
  DecoderSpec spec;
  TensorView embedding;  ///< [vocab_size, hidden_size]
  std::vector<LayerDescription> layers;
  std::vector<float> final_norm;
  DescribedMatrix output;  ///< [vocab_size, hidden_size]; the embedding's own tensor where tied
  bool tied = false;
};

/// One row per architecture; its file says how the names and the config map to a Description.
struct Architecture {
  std::string_view name;  ///< config.json's architectures[0]
  Result<Description> (*describe)(const Checkpoint& checkpoint);
};

/// Finds the architecture and describes. Errors: one that is unknown, naming those that are known;
/// a tensor that nothing claims.
Result<Description> describe(const Checkpoint& checkpoint);

/// The same with linear layers in the schemes that `quantization` (see QuantizationMap) asks for;
/// "": as the file has them. Errors beside describe's: what cannot be quantized so.
Result<Description> describe(const Checkpoint& checkpoint, std::string_view quantization);

}  // namespace moracle
