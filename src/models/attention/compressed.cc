// Compressed attention (DeepSeek-AI, "DeepSeek-V4", 2026): the last positions, and entries that
// stand for `rate` tokens each.
//
//   q = RoPE(RMSNorm(W_qb norm(W_qa x)))     per head; the second norm has no weights
//   k = RoPE(norm(W_kv x))                   once for all heads; it is the value, too
//   entry = RoPE(norm(Σ softmax(gate + bias) · value))       values ‖ gates = W x of its tokens
//   o = W_ob (W_oa of each group of heads) of the heads with RoPE undone
//
// With an indexer, a token sees the entries with the largest scores alone: Σ_h w_h · max(0, q_h ·
// k_e), where k_e are entries of a compressor of its own.
#include <cmath>

#include "base/try.h"
#include "models/attention/attention.h"
#include "oracle/carve.h"

namespace moracle {
namespace compressed {
namespace {

struct Scratch {
  Matrix q_latent, q, kv, rows, index_rows, index_q, index_weights, attended, grouped;
  std::byte* select;  // of select_entries
  size_t bytes = 0;
};
int64_t row_size(const CompressedSpec& spec, int64_t dim) {
  return spec.rate == 0 ? 0 : (spec.overlap ? 4 : 2) * dim;
}
Scratch carve(const CompressedSpec& spec, int64_t tokens, DType dtype, std::byte* base) {
  Carver carver(base);
  const auto take = [&](int64_t cols) { return carver.take_matrix(dtype, tokens, cols); };
  const IndexerSpec& indexer = spec.indexer;
  const bool selects = indexer.top_k > 0;
  Scratch scratch;
  scratch.q_latent = take(spec.q_rank);
  scratch.q = take(spec.heads_size());
  scratch.kv = take(spec.head_dim);
  scratch.rows = take(row_size(spec, spec.head_dim));
  scratch.index_rows = take(selects ? row_size(spec, indexer.head_dim) : 0);
  scratch.index_q = take(selects ? indexer.num_heads * indexer.head_dim : 0);
  scratch.index_weights = take(selects ? indexer.num_heads : 0);
  scratch.attended = take(spec.heads_size());
  scratch.grouped = take(spec.num_groups * spec.group_rank);
  scratch.select =
      carver.take<std::byte>(selects ? static_cast<int64_t>(select_scratch_bytes(dtype)) : 0);
  scratch.bytes = carver.bytes();
  return scratch;
}

/// RoPE of the last columns of heads with `dim` columns.
RotaryShape last_columns(const CompressedSpec& spec, int64_t dim) {
  const auto rotated = static_cast<int64_t>(2 * spec.rotary.frequencies.size());
  return rotary_shape(spec.rotary, dim, dim - rotated);
}
/// The compressor whose entries have `dim` columns; `before`: bytes of state before its own.
CompressShape compress_shape(const CompressedSpec& spec, int64_t dim, int64_t before = 0) {
  return {.rate = spec.rate,
          .dim = dim,
          .overlap = spec.overlap,
          .epsilon = spec.norm_epsilon,
          .rotary = last_columns(spec, dim),
          .index_keys = false,
          .state = before};
}

// One compressor with its weights.
struct Compressor {
  std::optional<AdaptedLinear> linear;
  Buffer bias, norm;

  Status load(CompressorDescription&& from, Loader& loader) {
    MORACLE_CHECK(loader.load(bias, from.bias));
    MORACLE_CHECK(loader.load(norm, from.norm));
    return loader.load(linear, std::move(from.rows));
  }
  Status apply(const Matrix& x, const Matrix& rows, CompressShape shape, const float* frequencies,
               const AttentionStep& step) {
    shape.cache = step.cache;
    shape.state += step.cache.state;
    MORACLE_CHECK(linear->apply(x, rows, step.stream));
    const CompressWeights weights{bias.as<float>(), norm.as<float>(), frequencies};
    return step.ops.compress(rows, weights, shape, step.batch, step.stream);
  }
};

class CompressedAttention : public Attention {
 public:
  explicit CompressedAttention(const CompressedSpec& spec) : spec_(spec) {}

  Status load(AttentionDescription&& description, Loader& loader) override {
    MORACLE_TRY(auto* from, same_attention<CompressedDescription>(description, spec_));
    std::vector<float> back = spec_.rotary.frequencies;
    for (float& frequency : back) frequency = -frequency;
    const std::vector<float> ones(static_cast<size_t>(spec_.head_dim), 1.0f);
    MORACLE_CHECK(loader.load(frequencies_, spec_.rotary.frequencies));
    MORACLE_CHECK(loader.load(back_, back));
    MORACLE_CHECK(loader.load(ones_, ones));
    MORACLE_CHECK(loader.device().synchronize());  // before `ones` and `back` are destroyed
    MORACLE_CHECK(loader.load(q_norm_, from->q_norm));
    MORACLE_CHECK(loader.load(kv_norm_, from->kv_norm));
    MORACLE_CHECK(loader.load(sinks_, from->sinks));
    MORACLE_CHECK(loader.load(q_a_, std::move(from->q_a)));
    MORACLE_CHECK(loader.load(q_b_, std::move(from->q_b)));
    MORACLE_CHECK(loader.load(kv_, std::move(from->kv)));
    if (from->compressor) MORACLE_CHECK(compressor_.load(std::move(*from->compressor), loader));
    if (from->index_compressor) {
      MORACLE_CHECK(index_compressor_.load(std::move(*from->index_compressor), loader));
      MORACLE_CHECK(loader.load(index_q_, std::move(*from->index_q)));
      MORACLE_CHECK(loader.load(index_weights_, std::move(*from->index_weights)));
    }
    o_a_.resize(from->o_a.size());
    for (size_t group = 0; group < o_a_.size(); ++group)
      MORACLE_CHECK(loader.load(o_a_[group], std::move(from->o_a[group])));
    return loader.load(o_b_, std::move(from->o_b));
  }

  Status apply(const LayerInput& input, const Matrix& out, const AttentionStep& step) override {
    const Matrix& x = input.x;
    const CompressedSpec& spec = spec_;
    const Scratch scratch = carve(spec, x.rows, x.dtype, step.scratch);
    MORACLE_CHECK(queries_and_keys(x, scratch, step));
    CompressedShape shape{.num_heads = spec.num_heads,
                          .head_dim = spec.head_dim,
                          .scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim)),
                          .window = spec.window,
                          .sinks = sinks_.as<float>(),
                          .rate = spec.rate,
                          .cache = step.cache};
    if (spec.rate > 0) {
      MORACLE_CHECK(compressor_.apply(x, scratch.rows, compress_shape(spec, spec.head_dim),
                                      frequencies_.as<float>(), step));
    }
    if (spec.indexer.top_k > 0) {
      MORACLE_CHECK(select(x, scratch, step));
      shape.selected = step.selected;
      shape.top_k = spec.indexer.top_k;
    }
    step.observer.done(StepPart::kAttentionLinears);
    MORACLE_CHECK(
        step.ops.attend_compressed(scratch.q, step.batch, shape, scratch.attended, step.stream));
    MORACLE_CHECK(rotate(scratch.attended, spec.head_dim, back_, step));
    step.observer.done(StepPart::kAttention);
    const int64_t from = spec.heads_size() / spec.num_groups;
    for (int64_t group = 0; group < spec.num_groups; ++group) {
      MORACLE_CHECK(o_a_[group]->apply(
          columns(scratch.attended, group * from, from),
          columns(scratch.grouped, group * spec.group_rank, spec.group_rank), step.stream));
    }
    MORACLE_CHECK(o_b_->apply(scratch.grouped, out, step.stream));
    step.observer.done(StepPart::kAttentionLinears);
    return {};
  }

 private:
  Status rotate(const Matrix& heads, int64_t dim, const Buffer& frequencies,
                const AttentionStep& step) const {
    return step.ops.rotate(heads, last_columns(spec_, dim), frequencies.as<float>(),
                           step.batch.positions, step.stream);
  }

  Status queries_and_keys(const Matrix& x, const Scratch& scratch, const AttentionStep& step) {
    const auto norm = [&](const Matrix& heads, const Buffer& weights, int64_t size) {
      return step.ops.rms_norm(heads, weights.as<float>(), size, spec_.norm_epsilon, heads,
                               step.stream);
    };
    const int64_t dim = spec_.head_dim;
    MORACLE_CHECK(q_a_->apply(x, scratch.q_latent, step.stream));
    MORACLE_CHECK(norm(scratch.q_latent, q_norm_, spec_.q_rank));
    MORACLE_CHECK(q_b_->apply(scratch.q_latent, scratch.q, step.stream));
    MORACLE_CHECK(norm(scratch.q, ones_, dim));
    MORACLE_CHECK(rotate(scratch.q, dim, frequencies_, step));
    MORACLE_CHECK(kv_->apply(x, scratch.kv, step.stream));
    MORACLE_CHECK(norm(scratch.kv, kv_norm_, dim));
    MORACLE_CHECK(rotate(scratch.kv, dim, frequencies_, step));
    Matrix none = scratch.kv;  // keys are the values
    none.cols = 0;
    return step.ops.append(scratch.kv, none, step.batch, step.cache, step.stream);
  }

  // Appends the entries of the indexer, and chooses those that the tokens see.
  Status select(const Matrix& x, const Scratch& scratch, const AttentionStep& step) {
    const IndexerSpec& indexer = spec_.indexer;
    CompressShape shape = compress_shape(
        spec_, indexer.head_dim, compress_state_bytes(compress_shape(spec_, spec_.head_dim)));
    shape.index_keys = true;
    MORACLE_CHECK(
        index_compressor_.apply(x, scratch.index_rows, shape, frequencies_.as<float>(), step));
    if (step.batch.longest / spec_.rate <= indexer.top_k) return {};  // tokens see all entries
    MORACLE_CHECK(index_q_->apply(scratch.q_latent, scratch.index_q, step.stream));
    MORACLE_CHECK(rotate(scratch.index_q, indexer.head_dim, frequencies_, step));
    MORACLE_CHECK(index_weights_->apply(x, scratch.index_weights, step.stream));
    const EntryIndexShape of_index{
        .num_heads = indexer.num_heads,
        .head_dim = indexer.head_dim,
        .top_k = indexer.top_k,
        .rate = spec_.rate,
        .scale = 1.0f / std::sqrt(static_cast<float>(indexer.head_dim * indexer.num_heads)),
        .cache = step.cache,
        .batch_invariant = step.batch_invariant};
    return step.ops.select_entries(scratch.index_q, scratch.index_weights, step.batch, of_index,
                                   step.selected, scratch.select, step.stream);
  }

  CompressedSpec spec_;
  Buffer frequencies_, back_, ones_, q_norm_, kv_norm_, sinks_;
  std::optional<AdaptedLinear> q_a_, q_b_, kv_, o_b_;
  std::vector<std::optional<AdaptedLinear>> o_a_;  // of each group
  Compressor compressor_, index_compressor_;       // of layers with entries, and with an indexer
  std::optional<AdaptedLinear> index_q_, index_weights_;
};

}  // namespace
}  // namespace compressed

AttentionSizes attention_sizes(const CompressedSpec& spec, int64_t max_num_tokens, DType dtype) {
  using compressed::carve, compressed::compress_shape;
  const IndexerSpec& indexer = spec.indexer;
  int64_t state = 0;
  if (spec.rate > 0) state += compress_state_bytes(compress_shape(spec, spec.head_dim));
  if (indexer.top_k > 0) state += compress_state_bytes(compress_shape(spec, indexer.head_dim));
  return {.num_kv_heads = 1,
          .key_size = spec.head_dim,
          .scratch_bytes = carve(spec, max_num_tokens, dtype, nullptr).bytes,
          .state_bytes = static_cast<size_t>((state + 63) / 64 * 64),
          .selected = indexer.top_k,
          .entry_rate = spec.rate,
          .entry_size = spec.rate > 0 ? spec.head_dim : 0,
          .entry_index_size = indexer.top_k > 0 ? indexer.head_dim : 0};
}

std::unique_ptr<Attention> make_attention(const CompressedSpec& spec) {
  return std::make_unique<compressed::CompressedAttention>(spec);
}

}  // namespace moracle
