#include "models/attention/indexer.h"

#include <cmath>

#include "base/try.h"

namespace moracle {

IndexerScratch carve_indexer(const IndexerSpec& spec, int64_t tokens, DType dtype, Carver& carver) {
  if (spec.top_k == 0 || spec.shared) return {};
  IndexerScratch scratch;
  scratch.q = carver.take_matrix(dtype, tokens, spec.num_heads * spec.head_dim);
  scratch.k = carver.take_matrix(dtype, tokens, spec.head_dim);
  scratch.weights = carver.take_matrix(dtype, tokens, spec.num_heads);
  scratch.select = carver.take<std::byte>(static_cast<int64_t>(select_scratch_bytes(dtype)));
  return scratch;
}

Status Indexer::load(IndexerDescription&& from, Loader& loader) {
  MORACLE_CHECK(loader.load(k_norm_, from.k_norm));
  MORACLE_CHECK(loader.load(q_, std::move(from.q)));
  MORACLE_CHECK(loader.load(k_, std::move(from.k)));
  return loader.load(weights_, std::move(from.weights));
}

Status Indexer::apply(const Matrix& x, const Matrix& q_latent, const float* frequencies,
                      const IndexerScratch& scratch, const AttentionStep& step) {
  constexpr float kEpsilon = 1e-6f;  // of the LayerNorm, whatever rms_norm_eps is
  const auto rotate = [&](const Matrix& heads) {
    return step.ops.rotate(heads, rotary_shape(rotary_, spec_.head_dim), frequencies,
                           step.batch.positions, step.stream);
  };
  MORACLE_CHECK(k_->apply(x, scratch.k, step.stream));
  const float* const norm = k_norm_.as<float>();
  MORACLE_CHECK(step.ops.layer_norm(scratch.k, norm, norm + spec_.head_dim, kEpsilon, scratch.k,
                                    step.stream));
  MORACLE_CHECK(rotate(scratch.k));
  MORACLE_CHECK(step.ops.append_index(scratch.k, step.batch, step.cache, step.stream));
  if (step.batch.longest <= spec_.top_k) return {};  // all tokens see all positions
  MORACLE_CHECK(q_->apply(q_latent, scratch.q, step.stream));
  MORACLE_CHECK(rotate(scratch.q));
  MORACLE_CHECK(weights_->apply(x, scratch.weights, step.stream));
  const float scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim * spec_.num_heads));
  const IndexShape shape{spec_.num_heads, spec_.head_dim, spec_.top_k,
                         scale,           step.cache,     step.batch_invariant};
  return step.ops.select_positions(scratch.q, scratch.weights, step.batch, shape, step.selected,
                                   scratch.select, step.stream);
}

}  // namespace moracle
