#include "models/attention/indexer.h"

#include <cmath>

#include "base/try.h"

namespace moracle {

IndexerScratch carve_indexer(const IndexerSpec& spec, int64_t tokens, DType dtype, Carver& carver) {
  if (spec.top_k == 0 || spec.shared) return {};
  IndexerScratch scratch;
  scratch.q = carver.take_matrix(dtype, tokens, spec.num_heads * spec.head_dim);
  scratch.k = carver.take_matrix(dtype, tokens, spec.head_dim);
  scratch.weights = carver.take_matrix(dtype, tokens, spec.block > 0 ? 0 : spec.num_heads);
  scratch.select = carver.take<std::byte>(static_cast<int64_t>(select_scratch_bytes(dtype)));
  return scratch;
}

Status Indexer::load(IndexerDescription&& from, Loader& loader) {
  MORACLE_CHECK(loader.load(q_norm_, from.q_norm));
  MORACLE_CHECK(loader.load(k_norm_, from.k_norm));
  MORACLE_CHECK(loader.load(q_, std::move(from.q)));
  MORACLE_CHECK(loader.load(k_, std::move(from.k)));
  if (!from.weights) return {};
  return loader.load(weights_, std::move(*from.weights));
}

Status Indexer::norm_keys(const Matrix& k, const AttentionStep& step) const {
  const float* const norm = k_norm_.as<float>();
  const float epsilon = spec_.norm_epsilon;
  if (spec_.block > 0) return step.ops.rms_norm(k, norm, spec_.head_dim, epsilon, k, step.stream);
  return step.ops.layer_norm(k, norm, norm + spec_.head_dim, epsilon, k, step.stream);
}

Status Indexer::apply(const Matrix& x, const Matrix& q_input, const float* frequencies,
                      const IndexerScratch& scratch, const AttentionStep& step) {
  const auto rotate = [&](const Matrix& heads) {
    return step.ops.rotate(heads, rotary_shape(rotary_, spec_.head_dim), frequencies,
                           step.batch.positions, step.stream);
  };
  MORACLE_CHECK(k_->apply(x, scratch.k, step.stream));
  MORACLE_CHECK(norm_keys(scratch.k, step));
  MORACLE_CHECK(rotate(scratch.k));
  MORACLE_CHECK(step.ops.append_index(scratch.k, step.batch, step.cache, step.stream));
  if (step.batch.longest <= spec_.top_k) return {};  // all tokens see all positions
  MORACLE_CHECK(q_->apply(q_input, scratch.q, step.stream));
  if (spec_.block > 0) {
    MORACLE_CHECK(step.ops.rms_norm(scratch.q, q_norm_.as<float>(), spec_.head_dim,
                                    spec_.norm_epsilon, scratch.q, step.stream));
    MORACLE_CHECK(rotate(scratch.q));
    IndexShape shape{spec_.num_heads, spec_.head_dim,      spec_.top_k, 1,
                     step.cache,      step.batch_invariant};
    shape.block = spec_.block, shape.local_blocks = spec_.local_blocks;
    return step.ops.select_blocks(scratch.q, step.batch, shape, step.selected, scratch.select,
                                  step.stream);
  }
  MORACLE_CHECK(rotate(scratch.q));
  MORACLE_CHECK(weights_->apply(x, scratch.weights, step.stream));
  const float scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim * spec_.num_heads));
  const IndexShape shape{spec_.num_heads, spec_.head_dim, spec_.top_k,
                         scale,           step.cache,     step.batch_invariant};
  return step.ops.select_positions(scratch.q, scratch.weights, step.batch, shape, step.selected,
                                   scratch.select, step.stream);
}

void set_selection(const IndexerSpec& spec, const AttentionStep& step, AttentionShape& shape) {
  if (spec.top_k == 0 || (!step.batch_invariant && step.batch.longest <= spec.top_k)) return;
  shape.selected = step.selected;
  shape.top_k = spec.top_k;
  shape.block = spec.block > 0 ? spec.block : 1;
  shape.selections = spec.num_selections();
}

}  // namespace moracle
