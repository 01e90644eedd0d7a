// The indexer of sparse attention (DSA; DeepSeek-AI, "DeepSeek-V3.2", 2025): a small attention
// without values, whose scores choose the positions that a token sees.
//
//   q = RoPE(W_q norm(W_qa x))            per index head
//   k = RoPE(LayerNorm(W_k x))            once for all heads, cached
//   score(j) = Σ_h w_h · max(0, q_h · k_j) / √(head_dim · num_heads)      w = W_w x
//
// With blocks (MiniMax-M3), each head chooses blocks of positions by their largest product:
//
//   q = RoPE(norm(W_q x))                    per index head
//   k = RoPE(norm(W_k x))                    once for all heads, cached
//   score(h, b) = max over j in block b of q_h · k_j
//
// With pools (GLM-5.3-Flash), `pool` positions share one key, and none has RoPE:
//
//   q = W_q norm(W_qa x)                     per index head
//   k = Σ softmax(W_g x + bias) · LayerNorm(W_k x)       of each column over the pool, cached
//
// Or the key of a pool is an average (Qwen3.8-Flash-Next):
//
//   q = RoPE(norm(W_q x))                    per index head, all of which have the weight 1
//   k = RoPE(norm(mean of W_k x))            at the pool's first position, cached
#pragma once

#include "models/attention/attention.h"
#include "oracle/carve.h"

namespace moracle {

struct IndexerScratch {
  Matrix q, k, weights;  // with pools, k holds keys and their gates side by side
  std::byte* select = nullptr;
};
IndexerScratch carve_indexer(const IndexerSpec& spec, int64_t tokens, DType dtype, Carver& carver);
/// With pools: the last pool of keys and gates of a sequence.
int64_t indexer_state_bytes(const IndexerSpec& spec);

class Indexer {
 public:
  Indexer(const IndexerSpec& spec, const Rotary& rotary) : spec_(spec), rotary_(rotary) {
    rotary_.interleaved = spec.interleaved;
  }

  Status load(IndexerDescription&& from, Loader& loader);
  /// Appends the index keys of the layer's input x. Fills step.selected for tokens that do not see
  /// all positions. `q_input`: what queries come from, a normed vector of low rank or x.
  Status apply(const Matrix& x, const Matrix& q_input, const float* frequencies,
               const IndexerScratch& scratch, const AttentionStep& step);

 private:
  IndexerSpec spec_;
  Rotary rotary_;
  Status norm_keys(const Matrix& k, const AttentionStep& step) const;
  Status select_pools(const Matrix& x, const Matrix& q_input, const float* frequencies,
                      const IndexerScratch& scratch, const AttentionStep& step);
  Status append_pools(const Matrix& x, const float* frequencies, const IndexerScratch& scratch,
                      const AttentionStep& step);

  Buffer q_norm_, k_norm_;  // q_norm_ is empty without blocks
  Buffer pool_bias_;        // of pools that are no averages
  Buffer ones_;             // of averages: a weight for each head
  std::optional<AdaptedLinear> q_, k_, weights_;
  std::optional<AdaptedLinear> pool_gates_;  // of pools that are no averages
};

/// Lets tokens see what the step's last indexer chose. A GPU has a kernel of its own for
/// selections. With batch_invariant it serves shorter contexts, too, because the bits of a token
/// may not depend on the rest of the batch.
void set_selection(const IndexerSpec& spec, const AttentionStep& step, AttentionShape& shape);

}  // namespace moracle
