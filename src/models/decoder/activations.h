// Memory between the modules of a model: one block, sized before anything is loaded.
#pragma once

#include "models/attention/attention.h"
#include "models/decoder/feed_forward.h"
#include "models/decoder/gated_residual.h"
#include "models/decoder/ngrams.h"

namespace moracle {

/// Each matrix is [max_num_tokens, …]; layers run in turn and share them.
struct Activations {
  /// `hidden` has num_streams streams side by side.
  Matrix hidden, normed, branch;
  float* hyper = nullptr;  ///< [max_num_tokens, hyper_floats]: see Ops::collapse_streams
  GatedResidualScratch gated;
  /// [kMostNormedTokens, …]: the residual stream's second buffer (see ResidualStream).
  Matrix other_hidden;
  FeedForwardScratch feed_forward;
  /// The largest scratch of any layer's attention or n-grams.
  std::byte* attention = nullptr;
  int32_t* selected = nullptr;  ///< see AttentionStep
  /// [kMaxLogitRows, vocab_size] f32; of a divided output the ranks' parts, one after another.
  Matrix logits;
  int32_t* largest = nullptr;  ///< top-k token ids of all rows, then their logits; likewise
  std::byte* top_k_scratch = nullptr;
  size_t bytes = 0;
};
/// Steps of more tokens run each norm before attention as an operation.
inline constexpr int64_t kMostNormedTokens = 16;
/// If `base` is null, only `bytes` is valid.
Activations carve_activations(const Description& description, int64_t max_num_tokens, DType dtype,
                              std::byte* base);

}  // namespace moracle
