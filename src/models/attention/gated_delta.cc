// Gated DeltaNet: a short convolution over q, k and v, the gated delta rule, then RMSNorm of each
// head and a gate. The sequence's state replaces keys and values.
#include "base/try.h"
#include "models/attention/attention.h"
#include "oracle/carve.h"

namespace moracle {
namespace gated_delta {
namespace {

// Within a sequence's state of this layer: first the delta rule's, then the convolution's.
int64_t rule_bytes(const GatedDeltaSpec& spec) {
  return (spec.num_value_heads * spec.key_dim * spec.value_dim * 4 + 63) / 64 * 64;
}
int64_t convolution_bytes(const GatedDeltaSpec& spec) {
  return ((spec.kernel - 1) * spec.mixed() * 4 + 63) / 64 * 64;
}

struct Scratch {
  Matrix qkvz, ba, mixed, convolved, out;
  size_t bytes = 0;
};
Scratch carve(const GatedDeltaSpec& spec, int64_t tokens, DType dtype, std::byte* base) {
  Carver carver(base);
  const auto take = [&](int64_t cols) { return carver.take_matrix(dtype, tokens, cols); };
  Scratch scratch;
  scratch.qkvz = take(spec.mixed() + spec.values());
  scratch.ba = take(2 * spec.num_value_heads);
  scratch.mixed = take(spec.by_key_head ? spec.mixed() : 0);
  scratch.convolved = take(spec.mixed());
  scratch.out = take(spec.values());
  scratch.bytes = carver.bytes();
  return scratch;
}

class GatedDelta : public Attention {
 public:
  explicit GatedDelta(const GatedDeltaSpec& spec) : spec_(spec) {}

  Status load(AttentionDescription&& description, Loader& loader) override {
    MORACLE_TRY(auto* from, same_attention<GatedDeltaDescription>(description, spec_));
    MORACLE_CHECK(loader.load(convolution_, by_tap(from->convolution, spec_.kernel)));
    MORACLE_CHECK(loader.load(a_log_, from->a_log));
    MORACLE_CHECK(loader.load(dt_bias_, from->dt_bias));
    MORACLE_CHECK(loader.load(norm_, from->norm));
    MORACLE_CHECK(loader.load(qkvz_, std::move(from->qkvz)));
    MORACLE_CHECK(loader.load(ba_, std::move(from->ba)));
    return loader.load(o_, std::move(from->o));
  }

  Status apply(const Matrix& x, const Matrix& out, const AttentionStep& step) override {
    const GatedDeltaSpec& spec = spec_;
    const Scratch scratch = carve(spec, x.rows, x.dtype, step.scratch);
    MORACLE_CHECK(qkvz_->apply(x, scratch.qkvz, step.stream));
    MORACLE_CHECK(ba_->apply(x, scratch.ba, step.stream));
    part_done(step.on_part, "attention linears");
    MORACLE_TRY(const Matrix mixed, mix(scratch, step));
    const ConvolutionShape convolution{spec.kernel, true, step.cache.state + rule_bytes(spec)};
    MORACLE_CHECK(step.ops.convolve(mixed, floats(convolution_), convolution, step.batch,
                                    scratch.convolved, step.stream));
    const GatedDeltaShape rule{spec.num_key_heads,
                               spec.num_value_heads,
                               spec.key_dim,
                               spec.value_dim,
                               spec.by_key_head ? spec.value_heads_per_key() : spec.num_value_heads,
                               step.cache.state};
    MORACLE_CHECK(step.ops.gated_delta(scratch.convolved, scratch.ba, floats(a_log_),
                                       floats(dt_bias_), rule, step.batch, scratch.out,
                                       step.stream));
    MORACLE_CHECK(step.ops.rms_norm(scratch.out, floats(norm_), spec.value_dim, spec.norm_epsilon,
                                    scratch.out, step.stream));
    MORACLE_CHECK(apply_gate(scratch, step));
    part_done(step.on_part, "attention");
    MORACLE_CHECK(o_->apply(scratch.out, out, step.stream));
    part_done(step.on_part, "attention linears");
    return {};
  }

 private:
  // Columns of one key head in qkvz, if they are stored by key head: q, k, its v and its z.
  int64_t group_dim() const { return 2 * spec_.key_dim + 2 * group_values(); }
  int64_t group_values() const { return spec_.value_heads_per_key() * spec_.value_dim; }

  // All heads of q, then of k, then of v.
  Result<Matrix> mix(const Scratch& scratch, const AttentionStep& step) {
    const GatedDeltaSpec& spec = spec_;
    if (!spec.by_key_head) return columns(scratch.qkvz, 0, spec.mixed());
    const auto copy = [&](int64_t from, int64_t to, int64_t count) {
      return step.ops.copy_heads(columns(scratch.qkvz, from, scratch.qkvz.cols - from), group_dim(),
                                 columns(scratch.mixed, to, scratch.mixed.cols - to), count,
                                 spec.num_key_heads, count, step.stream);
    };
    MORACLE_CHECK(copy(0, 0, spec.key_dim));
    MORACLE_CHECK(copy(spec.key_dim, spec.keys(), spec.key_dim));
    MORACLE_CHECK(copy(2 * spec.key_dim, 2 * spec.keys(), group_values()));
    return scratch.mixed;
  }

  Status apply_gate(const Scratch& scratch, const AttentionStep& step) {
    const GatedDeltaSpec& spec = spec_;
    if (!spec.by_key_head) {
      const Matrix z = columns(scratch.qkvz, spec.mixed(), spec.values());
      return step.ops.gate(scratch.out, 0, z, 0, 1, spec.values(), Gate::kSilu, step.stream);
    }
    const int64_t first = 2 * spec.key_dim + group_values();
    const Matrix z = columns(scratch.qkvz, first, scratch.qkvz.cols - first);
    return step.ops.gate(scratch.out, group_values(), z, group_dim(), spec.num_key_heads,
                         group_values(), Gate::kSilu, step.stream);
  }

  GatedDeltaSpec spec_;
  Buffer convolution_, a_log_, dt_bias_, norm_;
  std::optional<AdaptedLinear> qkvz_, ba_, o_;
};

}  // namespace
}  // namespace gated_delta

AttentionSizes attention_sizes(const GatedDeltaSpec& spec, int64_t max_num_tokens, DType dtype) {
  return {
      0, 0, 0, gated_delta::carve(spec, max_num_tokens, dtype, nullptr).bytes,
      static_cast<size_t>(gated_delta::rule_bytes(spec) + gated_delta::convolution_bytes(spec))};
}

std::unique_ptr<Attention> make_attention(const GatedDeltaSpec& spec) {
  return std::make_unique<gated_delta::GatedDelta>(spec);
}

}  // namespace moracle
