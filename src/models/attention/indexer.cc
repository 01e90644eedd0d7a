#include "models/attention/indexer.h"

#include <cmath>

#include "base/try.h"

namespace moracle {
namespace {

CompressShape pool_shape(const IndexerSpec& spec) {
  CompressShape shape{};
  shape.rate = spec.pool;
  shape.dim = spec.head_dim;
  shape.index_keys = true;
  shape.average = spec.averaged;
  return shape;
}

}  // namespace

int64_t indexer_state_bytes(const IndexerSpec& spec) {
  if (spec.pool == 0 || spec.shared) return 0;
  return (compress_state_bytes(pool_shape(spec)) + 63) / 64 * 64;
}

IndexerScratch carve_indexer(const IndexerSpec& spec, int64_t tokens, DType dtype, Carver& carver) {
  if (spec.top_k == 0 || spec.shared) return {};
  IndexerScratch scratch;
  scratch.q = carver.take_matrix(dtype, tokens, spec.num_heads * spec.head_dim);
  const bool gated = spec.pool > 0 && !spec.averaged, weighted = spec.block == 0 && !spec.averaged;
  scratch.k = carver.take_matrix(dtype, tokens, (gated ? 2 : 1) * spec.head_dim);
  scratch.weights = carver.take_matrix(dtype, tokens, weighted ? spec.num_heads : 0);
  scratch.select = carver.take<std::byte>(static_cast<int64_t>(select_scratch_bytes(dtype)));
  return scratch;
}

Status Indexer::load(IndexerDescription&& from, Loader& loader) {
  MORACLE_CHECK(loader.load(q_norm_, from.q_norm));
  MORACLE_CHECK(loader.load(k_norm_, from.k_norm));
  MORACLE_CHECK(loader.load(q_, std::move(from.q)));
  MORACLE_CHECK(loader.load(k_, std::move(from.k)));
  MORACLE_CHECK(loader.load(pool_bias_, from.pool_bias));
  if (from.pool_gates) MORACLE_CHECK(loader.load(pool_gates_, std::move(*from.pool_gates)));
  if (spec_.averaged) {
    const std::vector<float> ones(static_cast<size_t>(spec_.num_heads), 1.0f);
    MORACLE_CHECK(loader.load(ones_, ones));
    MORACLE_CHECK(loader.device().synchronize());  // before `ones` is destroyed
  }
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
  if (spec_.pool > 0) return select_pools(x, q_input, frequencies, scratch, step);
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

Status Indexer::append_pools(const Matrix& x, const float* frequencies,
                             const IndexerScratch& scratch, const AttentionStep& step) {
  const int64_t dim = spec_.head_dim;
  const Matrix keys = columns(scratch.k, 0, dim);
  CompressShape shape = pool_shape(spec_);
  shape.cache = step.cache;
  shape.state = step.cache.state;
  MORACLE_CHECK(k_->apply(x, keys, step.stream));
  if (spec_.averaged) {
    shape.epsilon = spec_.norm_epsilon;
    shape.rotary = rotary_shape(rotary_, dim);
    const CompressWeights weights{nullptr, k_norm_.as<float>(), frequencies};
    return step.ops.compress(keys, weights, shape, step.batch, step.stream);
  }
  MORACLE_CHECK(norm_keys(keys, step));
  MORACLE_CHECK(pool_gates_->apply(x, columns(scratch.k, dim, dim), step.stream));
  const CompressWeights weights{pool_bias_.as<float>(), nullptr, nullptr};
  return step.ops.compress(scratch.k, weights, shape, step.batch, step.stream);
}

Status Indexer::select_pools(const Matrix& x, const Matrix& q_input, const float* frequencies,
                             const IndexerScratch& scratch, const AttentionStep& step) {
  const int64_t dim = spec_.head_dim, top_k = spec_.selected();
  MORACLE_CHECK(append_pools(x, frequencies, scratch, step));
  if (step.batch.longest / spec_.pool <= top_k) return {};  // all tokens see all positions
  MORACLE_CHECK(q_->apply(q_input, scratch.q, step.stream));
  Matrix weights = scratch.weights;
  if (spec_.averaged) {
    MORACLE_CHECK(step.ops.rms_norm(scratch.q, q_norm_.as<float>(), dim, spec_.norm_epsilon,
                                    scratch.q, step.stream));
    MORACLE_CHECK(step.ops.rotate(scratch.q, rotary_shape(rotary_, dim), frequencies,
                                  step.batch.positions, step.stream));
    // One row for all tokens.
    weights = {ones_.as<std::byte>(), DType::kF32, x.rows, spec_.num_heads, 0};
  } else {
    MORACLE_CHECK(weights_->apply(x, weights, step.stream));
  }
  const int64_t summed = spec_.averaged ? 1 : spec_.num_heads;
  const EntryIndexShape of_pools{.num_heads = spec_.num_heads,
                                 .head_dim = dim,
                                 .top_k = top_k,
                                 .rate = spec_.pool,
                                 .scale = 1.0f / std::sqrt(static_cast<float>(dim * summed)),
                                 .cache = step.cache,
                                 .batch_invariant = step.batch_invariant};
  return step.ops.select_entries(scratch.q, weights, step.batch, of_pools, step.selected,
                                 scratch.select, step.stream);
}

void set_selection(const IndexerSpec& spec, const AttentionStep& step, AttentionShape& shape) {
  if (spec.top_k == 0) return;
  AttentionShape selecting = shape;
  selecting.selected = step.selected;
  selecting.top_k = spec.top_k;
  selecting.block = spec.block > 0 ? spec.block : spec.pool > 0 ? spec.pool : 1;
  selecting.selections = spec.num_selections();
  selecting.pools = spec.pool > 0;
  if (step.batch_invariant || step.batch.longest > selecting.first_selecting()) shape = selecting;
}

}  // namespace moracle
