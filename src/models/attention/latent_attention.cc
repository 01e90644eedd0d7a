// Multi-head latent attention (MLA, DeepSeek-V2, 2024); keys and values are decompressed into the
// cache:
//
//   q = W_q x, or W_qb norm(W_qa x)          per head: nope ‖ rope
//   c ‖ k_rope = W_kva x                     k_rope once for all heads
//   k_nope ‖ v = W_kvb norm(c)               per head
//   k = k_nope ‖ RoPE(k_rope)
//
// With an indexer (indexer.h), a token beyond the top-k sees only the positions that it chose. Some
// models have no k_rope.
//
// W_kvb is not absorbed into q and the output. Its input is quantized like every other layer's;
// after absorption there would be no input to quantize.
#include "base/try.h"
#include "models/attention/attention.h"
#include "models/attention/indexer.h"
#include "oracle/carve.h"

namespace moracle {
namespace {

AttentionShape shape_of(const LatentSpec& spec) {
  return {spec.num_heads, spec.num_heads, spec.head_dim(), spec.value_dim, spec.scale};
}

struct LatentScratch {
  Matrix q_latent, q, kv_a, kv_latent, kv, k, v, attended, gate;
  IndexerScratch indexer;
  std::byte* attend = nullptr;
  size_t bytes = 0;
};
LatentScratch carve(const LatentSpec& spec, int64_t tokens, DType dtype, std::byte* base) {
  Carver carver(base);
  auto take = [&](int64_t cols) { return carver.take_matrix(dtype, tokens, cols); };
  LatentScratch scratch;
  scratch.q_latent = take(spec.q_rank);
  scratch.q = take(spec.num_heads * spec.head_dim());
  scratch.kv_a = take(spec.kv_rank + spec.rope_dim);
  scratch.kv_latent = take(spec.kv_rank);
  scratch.kv = take(spec.num_heads * (spec.nope_dim + spec.value_dim));
  scratch.k = take(spec.num_heads * spec.head_dim());
  scratch.v = take(spec.num_heads * spec.value_dim);
  scratch.attended = take(spec.num_heads * spec.value_dim);
  scratch.gate = take(spec.head_gate ? spec.num_heads : 0);
  scratch.attend = carver.take<std::byte>(
      static_cast<int64_t>(attend_scratch_bytes(shape_of(spec), tokens, dtype)));
  scratch.indexer = carve_indexer(spec.indexer, tokens, dtype, carver);
  scratch.bytes = carver.bytes();
  return scratch;
}

class LatentAttention : public Attention {
 public:
  explicit LatentAttention(const LatentSpec& spec) : spec_(spec) {
    if (spec.indexer.top_k > 0 && !spec.indexer.shared) indexer_.emplace(spec.indexer, spec.rotary);
  }

  Status load(AttentionDescription&& description, Loader& loader) override {
    MORACLE_TRY(auto* from, same_attention<LatentDescription>(description, spec_));
    MORACLE_CHECK(loader.load(frequencies_, spec_.rotary.frequencies));
    MORACLE_CHECK(loader.load(q_norm_, from->q_norm));
    MORACLE_CHECK(loader.load(kv_norm_, from->kv_norm));
    if (from->q_a) MORACLE_CHECK(loader.load(q_a_, std::move(*from->q_a)));
    MORACLE_CHECK(loader.load(q_, std::move(from->q)));
    MORACLE_CHECK(loader.load(kv_a_, std::move(from->kv_a)));
    MORACLE_CHECK(loader.load(kv_b_, std::move(from->kv_b)));
    if (indexer_) MORACLE_CHECK(indexer_->load(std::move(*from->indexer), loader));
    if (spec_.head_gate) MORACLE_CHECK(loader.load(gate_, std::move(*from->gate)));
    return loader.load(o_, std::move(from->o));
  }

  Status apply(const LayerInput& input, const Matrix& out, const AttentionStep& step) override {
    const Matrix& x = input.x;
    const LatentSpec& spec = spec_;
    const LatentScratch scratch = carve(spec, x.rows, x.dtype, step.scratch);
    MORACLE_CHECK(queries(x, scratch, step));
    MORACLE_CHECK(keys_and_values(x, scratch, step));
    if (gate_) MORACLE_CHECK(gate_->apply(x, scratch.gate, step.stream));
    // This part includes norms, RoPE and the copies of heads.
    step.observer.done(StepPart::kAttentionLinears);
    if (indexer_) {
      MORACLE_CHECK(
          indexer_->apply(x, scratch.q_latent, floats(frequencies_), scratch.indexer, step));
    }
    AttentionShape shape = shape_of(spec);
    shape.cache = step.cache;
    shape.batch_invariant = step.batch_invariant;
    shape.bf16_products = step.bf16_products;
    set_selection(spec.indexer, step, shape);
    MORACLE_CHECK(step.ops.append(scratch.k, scratch.v, step.batch, step.cache, step.stream));
    MORACLE_CHECK(step.ops.attend(scratch.q, step.batch, shape, scratch.attended, scratch.attend,
                                  step.stream));
    if (gate_) {
      MORACLE_CHECK(step.ops.gate_heads(scratch.attended, scratch.gate, spec.value_dim,
                                        Gate::kSigmoid, step.stream));
    }
    step.observer.done(StepPart::kAttention);
    MORACLE_CHECK(o_->apply(scratch.attended, out, step.stream));
    step.observer.done(StepPart::kAttentionLinears);
    return {};
  }

 private:
  // The columns of each head from `first` on.
  Status rotate(const Matrix& heads, int64_t dim, int64_t first, const AttentionStep& step) const {
    if (spec_.rope_dim == 0) return {};
    return step.ops.rotate(heads, rotary_shape(spec_.rotary, dim, first), floats(frequencies_),
                           step.batch.positions, step.stream);
  }

  Status queries(const Matrix& x, const LatentScratch& scratch, const AttentionStep& step) {
    const LatentSpec& spec = spec_;
    if (q_a_) {
      MORACLE_CHECK(q_a_->apply(x, scratch.q_latent, step.stream));
      MORACLE_CHECK(step.ops.rms_norm(scratch.q_latent, q_norm_.as<float>(), spec.q_rank,
                                      spec.norm_epsilon, scratch.q_latent, step.stream));
    }
    MORACLE_CHECK(q_->apply(q_a_ ? scratch.q_latent : x, scratch.q, step.stream));
    MORACLE_CHECK(rotate(scratch.q, spec.head_dim(), spec.nope_dim, step));
    if (spec.temper_scale == 0) return {};
    return step.ops.temper(scratch.q, step.batch.positions, 0, spec.temper_scale,
                           spec.temper_strength, step.stream);
  }

  Status keys_and_values(const Matrix& x, const LatentScratch& scratch, const AttentionStep& step) {
    const LatentSpec& spec = spec_;
    const Matrix latent = columns(scratch.kv_a, 0, spec.kv_rank),
                 rope = columns(scratch.kv_a, spec.kv_rank, spec.rope_dim);
    MORACLE_CHECK(kv_a_->apply(x, scratch.kv_a, step.stream));
    MORACLE_CHECK(step.ops.rms_norm(latent, kv_norm_.as<float>(), spec.kv_rank, spec.norm_epsilon,
                                    scratch.kv_latent, step.stream));
    MORACLE_CHECK(rotate(rope, spec.rope_dim, 0, step));
    MORACLE_CHECK(kv_b_->apply(scratch.kv_latent, scratch.kv, step.stream));
    const int64_t kv_dim = spec.nope_dim + spec.value_dim;
    auto copy = [&](const Matrix& from, int64_t from_dim, const Matrix& to, int64_t to_dim,
                    int64_t count) {
      return step.ops.copy_heads(from, from_dim, to, to_dim, spec.num_heads, count, step.stream);
    };
    MORACLE_CHECK(copy(scratch.kv, kv_dim, scratch.k, spec.head_dim(), spec.nope_dim));
    if (spec.rope_dim > 0) {
      MORACLE_CHECK(copy(rope, 0, columns(scratch.k, spec.nope_dim, scratch.k.cols - spec.nope_dim),
                         spec.head_dim(), spec.rope_dim));
    }
    return copy(columns(scratch.kv, spec.nope_dim, scratch.kv.cols - spec.nope_dim), kv_dim,
                scratch.v, spec.value_dim, spec.value_dim);
  }

  LatentSpec spec_;
  Buffer frequencies_, q_norm_, kv_norm_;
  std::optional<AdaptedLinear> q_a_;  // present if queries come from a vector of low rank
  std::optional<AdaptedLinear> q_, kv_a_, kv_b_, o_;
  std::optional<AdaptedLinear> gate_;  // present with a gate for each head
  std::optional<Indexer> indexer_;     // of a layer that chooses positions itself
};

}  // namespace

AttentionSizes attention_sizes(const LatentSpec& spec, int64_t max_num_tokens, DType dtype) {
  const IndexerSpec& indexer = spec.indexer;
  const bool own = !indexer.shared;
  return {.num_kv_heads = spec.num_heads,
          .key_size = spec.num_heads * spec.head_dim(),
          .value_size = spec.num_heads * spec.value_dim,
          .scratch_bytes = carve(spec, max_num_tokens, dtype, nullptr).bytes,
          .state_bytes = static_cast<size_t>(indexer_state_bytes(indexer)),
          .index_size = own && indexer.pool == 0 ? indexer.head_dim : 0,
          .selected = indexer.num_selections() * indexer.selected(),
          .entry_rate = own ? indexer.pool : 0,
          .entry_index_size = own && indexer.pool > 0 ? indexer.head_dim : 0};
}

std::unique_ptr<Attention> make_attention(const LatentSpec& spec) {
  return std::make_unique<LatentAttention>(spec);
}

}  // namespace moracle
