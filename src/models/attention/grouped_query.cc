// GQA: one GEMM computes q, k and v. Optional RMSNorm on q and k before or after RoPE.
// Optional sinks, sliding window, chunks, temperature of queries by position, output gate, norm on
// values, keys as values. With an indexer (indexer.h), a token beyond its top-k sees only the
// blocks or pools of positions that it chose.
#include <cmath>

#include "base/try.h"
#include "models/attention/attention.h"
#include "models/attention/indexer.h"
#include "oracle/carve.h"

namespace moracle {
namespace {

AttentionShape shape_of(const GroupedQuerySpec& spec) {
  AttentionShape shape{
      spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.value_cols(),
      spec.scale > 0 ? spec.scale : 1.0f / std::sqrt(static_cast<float>(spec.head_dim))};
  shape.window = spec.window;
  shape.chunk = spec.chunk;
  return shape;
}

struct GroupedQueryScratch {
  Matrix qkv, q, attended;  // q: only if gates lie between the queries of qkv
  IndexerScratch indexer;
  std::byte* attend = nullptr;
  size_t bytes = 0;
};
GroupedQueryScratch carve(const GroupedQuerySpec& spec, int64_t tokens, DType dtype,
                          std::byte* base) {
  Carver carver(base);
  GroupedQueryScratch scratch;
  const bool between = spec.output_gate == OutputGate::kInQueries;
  scratch.qkv = carver.take_matrix(dtype, tokens,
                                   spec.queries() + spec.gates() + spec.keys() + spec.values());
  scratch.q = carver.take_matrix(dtype, tokens, between ? spec.queries() : 0);
  scratch.attended = carver.take_matrix(dtype, tokens, spec.outputs());
  scratch.attend = carver.take<std::byte>(
      static_cast<int64_t>(attend_scratch_bytes(shape_of(spec), tokens, dtype)));
  scratch.indexer = carve_indexer(spec.indexer, tokens, dtype, carver);
  scratch.bytes = carver.bytes();
  return scratch;
}

class GroupedQueryAttention : public Attention {
 public:
  explicit GroupedQueryAttention(const GroupedQuerySpec& spec) : spec_(spec) {
    if (spec.indexer.top_k > 0) indexer_.emplace(spec.indexer, spec.rotary);
  }

  Status load(AttentionDescription&& description, Loader& loader) override {
    MORACLE_TRY(auto* from, same_attention<GroupedQueryDescription>(description, spec_));
    MORACLE_CHECK(loader.load(frequencies_, spec_.rotary.frequencies));
    MORACLE_CHECK(loader.load(long_frequencies_, spec_.rotary.long_frequencies));
    MORACLE_CHECK(loader.load(q_norm_, from->q_norm));
    MORACLE_CHECK(loader.load(k_norm_, from->k_norm));
    MORACLE_CHECK(loader.load(sinks_, from->sinks));
    if (spec_.value_norm) {
      const std::vector<float> ones(static_cast<size_t>(spec_.head_dim), 1.0f);
      MORACLE_CHECK(loader.load(value_norm_, ones));
    }
    MORACLE_CHECK(loader.load(qkv_, std::move(from->qkv)));
    if (indexer_) MORACLE_CHECK(indexer_->load(std::move(*from->indexer), loader));
    return loader.load(o_, std::move(from->o));
  }

  // An indexer reads the normed input, too.
  bool starts_with_norm(const NormedInput& x) const override {
    return !indexer_ && qkv_->serves({x});
  }

  Status apply(const LayerInput& input, const Matrix& out, const AttentionStep& step) override {
    const GroupedQuerySpec& spec = spec_;
    const GroupedQueryScratch scratch = carve(spec, input.x.rows, input.x.dtype, step.scratch);
    const bool between = spec.output_gate == OutputGate::kInQueries;
    const int64_t k_at = between ? 2 * spec.queries() : spec.queries();
    const Matrix q = between ? scratch.q : columns(scratch.qkv, 0, spec.queries()),
                 k = columns(scratch.qkv, k_at, spec.keys()),
                 v = columns(scratch.qkv, k_at + spec.keys(), spec.values());
    const Matrix out_of_qkv =
        columns(scratch.qkv, 0, scratch.qkv.cols - (spec.values_are_keys ? spec.values() : 0));
    MORACLE_CHECK(qkv_->apply(input.call(out_of_qkv), step.stream));
    step.observer.done(StepPart::kAttentionLinears);
    if (between) {
      MORACLE_CHECK(step.ops.copy_heads(scratch.qkv, 2 * spec.head_dim, q, spec.head_dim,
                                        spec.num_heads, spec.head_dim, step.stream));
    }
    MORACLE_CHECK(prepare_values(k, v, step));
    MORACLE_CHECK(norm_rope_and_append(q, k, v, step));
    if (spec.temper_scale > 0) {
      MORACLE_CHECK(step.ops.temper(q, step.batch.positions, 1, spec.temper_scale,
                                    spec.temper_strength, step.stream));
    }
    if (indexer_) {
      MORACLE_CHECK(
          indexer_->apply(input.x, input.x, frequencies_.as<float>(), scratch.indexer, step));
    }
    AttentionShape shape = shape_of(spec);
    set_selection(spec.indexer, step, shape);
    shape.sinks = floats(sinks_);
    shape.cache = step.cache;
    shape.batch_invariant = step.batch_invariant;
    shape.bf16_products = step.bf16_products;
    MORACLE_CHECK(
        step.ops.attend(q, step.batch, shape, scratch.attended, scratch.attend, step.stream));
    MORACLE_CHECK(apply_gate(scratch, step));
    step.observer.done(StepPart::kAttention);
    MORACLE_CHECK(o_->apply(scratch.attended, out, step.stream));
    step.observer.done(StepPart::kAttentionLinears);
    return {};
  }

 private:
  Status apply_gate(const GroupedQueryScratch& scratch, const AttentionStep& step) {
    const GroupedQuerySpec& spec = spec_;
    if (spec.output_gate == OutputGate::kNone) return {};
    const Gate function = spec.softplus_gate ? Gate::kSoftplus : Gate::kSigmoid;
    const int64_t count = spec.gates();
    if (spec.output_gate == OutputGate::kInQueries) {
      const Matrix gates = columns(scratch.qkv, spec.head_dim, 2 * count - spec.head_dim);
      return step.ops.gate(scratch.attended, spec.head_dim, gates, 2 * spec.head_dim,
                           spec.num_heads, spec.head_dim, function, step.stream);
    }
    const Matrix gates = columns(scratch.qkv, scratch.qkv.cols - count, count);
    if (spec.output_gate == OutputGate::kPerHead) {
      return step.ops.gate_heads(scratch.attended, gates, spec.value_cols(), function, step.stream);
    }
    return step.ops.gate(scratch.attended, 0, gates, 0, 1, count, function, step.stream);
  }

  Status prepare_values(const Matrix& k, const Matrix& v, const AttentionStep& step) {
    const GroupedQuerySpec& spec = spec_;
    if (spec.values_are_keys) {
      MORACLE_CHECK(step.ops.copy_heads(k, spec.head_dim, v, spec.head_dim, spec.num_kv_heads,
                                        spec.head_dim, step.stream));
    }
    if (!spec.value_norm) return {};
    return step.ops.rms_norm(v, value_norm_.as<float>(), spec.head_dim, spec.norm_epsilon, v,
                             step.stream);
  }

  Status norm_rope_and_append(const Matrix& q, const Matrix& k, const Matrix& v,
                              const AttentionStep& step) {
    const RotaryShape rotary = rotary_shape(spec_.rotary, spec_.head_dim);
    QkNormRope rope{floats(q_norm_), floats(k_norm_), spec_.norm_epsilon, rotary,
                    frequencies_.as<float>()};
    Ops& ops = step.ops;
    const auto norm = [&](const Matrix& x, const Buffer& weight, int64_t size) {
      return ops.rms_norm(x, weight.as<float>(), size, spec_.norm_epsilon, x, step.stream);
    };
    if (spec_.qk_norm == QkNorm::kAfterRope) {
      for (const Matrix& x : {q, k}) {
        MORACLE_CHECK(ops.rotate(x, rotary, rope.frequencies, step.batch.positions, step.stream));
      }
      MORACLE_CHECK(norm(q, q_norm_, spec_.head_dim));
      MORACLE_CHECK(norm(k, k_norm_, spec_.head_dim));
      return ops.append(k, v, step.batch, step.cache, step.stream);
    }
    if (spec_.qk_norm == QkNorm::kOverHeads) {
      MORACLE_CHECK(norm(q, q_norm_, q.cols));
      MORACLE_CHECK(norm(k, k_norm_, k.cols));
      rope.q_norm = rope.k_norm = nullptr;
    }
    if (!spec_.rotary.long_frequencies.empty()) {
      MORACLE_CHECK(rotate_by_length(q, rope.q_norm, step));
      MORACLE_CHECK(rotate_by_length(k, rope.k_norm, step));
      return ops.append(k, v, step.batch, step.cache, step.stream);
    }
    return ops.rope_and_append(q, k, v, rope, step.batch, step.cache, step.stream);
  }

  // LongRoPE with short and long sequences in one step: rotates every row by both frequencies. The
  // position is 0, which changes nothing, for the frequencies of the other length.
  Status rotate_by_length(const Matrix& x, const float* norm_weight, const AttentionStep& step) {
    Ops& ops = step.ops;
    if (norm_weight != nullptr) {
      MORACLE_CHECK(
          ops.rms_norm(x, norm_weight, spec_.head_dim, spec_.norm_epsilon, x, step.stream));
    }
    const RotaryShape shape = rotary_shape(spec_.rotary, spec_.head_dim);
    MORACLE_CHECK(
        ops.rotate(x, shape, frequencies_.as<float>(), step.batch.short_positions, step.stream));
    MORACLE_CHECK(ops.rotate(x, shape, long_frequencies_.as<float>(), step.batch.long_positions,
                             step.stream));
    return ops.scale_rows(x, step.batch.rotary_factors, x, step.stream);
  }

  GroupedQuerySpec spec_;
  Buffer long_frequencies_;                       // empty: no LongRoPE
  Buffer frequencies_, q_norm_, k_norm_, sinks_;  // the last three are empty if the model has none
  Buffer value_norm_;                             // ones; empty: none
  std::optional<AdaptedLinear> qkv_, o_;
  std::optional<Indexer> indexer_;  // of a layer whose tokens see selected blocks
};

}  // namespace

AttentionSizes attention_sizes(const GroupedQuerySpec& spec, int64_t max_num_tokens, DType dtype) {
  const IndexerSpec& indexer = spec.indexer;
  return {.num_kv_heads = spec.num_kv_heads,
          .key_size = spec.keys(),
          .value_size = spec.values(),
          .scratch_bytes = carve(spec, max_num_tokens, dtype, nullptr).bytes,
          .state_bytes = static_cast<size_t>(indexer_state_bytes(indexer)),
          .index_size = indexer.pool > 0 ? 0 : indexer.head_dim,
          .selected = indexer.num_selections() * indexer.selected(),
          .entry_rate = indexer.pool,
          .entry_index_size = indexer.pool > 0 ? indexer.head_dim : 0};
}

std::unique_ptr<Attention> make_attention(const GroupedQuerySpec& spec) {
  return std::make_unique<GroupedQueryAttention>(spec);
}

}  // namespace moracle
