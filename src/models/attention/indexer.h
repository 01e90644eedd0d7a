// The indexer of sparse attention (DSA; DeepSeek-AI, "DeepSeek-V3.2", 2025): a small attention
// without values, whose scores choose the positions that a token sees.
//
//   q = RoPE(W_q norm(W_qa x))            per index head
//   k = RoPE(LayerNorm(W_k x))            once for all heads, cached
//   score(j) = Σ_h w_h · max(0, q_h · k_j) / √(head_dim · num_heads)      w = W_w x
#pragma once

#include "models/attention/attention.h"
#include "oracle/carve.h"

namespace moracle {

struct IndexerScratch {
  Matrix q, k, weights;
  std::byte* select = nullptr;
};
IndexerScratch carve_indexer(const IndexerSpec& spec, int64_t tokens, DType dtype, Carver& carver);

class Indexer {
 public:
  Indexer(const IndexerSpec& spec, const Rotary& rotary) : spec_(spec), rotary_(rotary) {
    rotary_.interleaved = spec.interleaved;
  }

  Status load(IndexerDescription&& from, Loader& loader);
  /// Appends the index keys of the layer's input x. Fills step.selected for tokens that do not see
  /// all positions. `q_latent`: the normed vector of low rank that queries come from.
  Status apply(const Matrix& x, const Matrix& q_latent, const float* frequencies,
               const IndexerScratch& scratch, const AttentionStep& step);

 private:
  IndexerSpec spec_;
  Rotary rotary_;
  Buffer k_norm_;
  std::optional<AdaptedLinear> q_, k_, weights_;
};

}  // namespace moracle
