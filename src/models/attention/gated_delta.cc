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

GatedDeltaShape shape_of(const GatedDeltaSpec& spec) {
  return {spec.num_key_heads,
          spec.num_value_heads,
          spec.key_dim,
          spec.value_dim,
          spec.by_key_head ? spec.value_heads_per_key() : spec.num_value_heads,
          0};
}

struct Scratch {
  Matrix qkvz, ba, convolved, out;
  std::byte* rule = nullptr;
  size_t bytes = 0;
};
Scratch carve(const GatedDeltaSpec& spec, int64_t tokens, DType dtype, std::byte* base) {
  Carver carver(base);
  const auto take = [&](int64_t cols) { return carver.take_matrix(dtype, tokens, cols); };
  Scratch scratch;
  scratch.qkvz = take(spec.mixed() + spec.values());
  scratch.ba = take(2 * spec.num_value_heads);
  scratch.convolved = take(spec.mixed());
  scratch.out = take(spec.values());
  scratch.rule = carver.take<std::byte>(
      static_cast<int64_t>(gated_delta_scratch_bytes(shape_of(spec), tokens, dtype)));
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

  Status apply(const LayerInput& input, const Matrix& out, const AttentionStep& step) override {
    const Matrix& x = input.x;
    const GatedDeltaSpec& spec = spec_;
    const Scratch scratch = carve(spec, x.rows, x.dtype, step.scratch);
    MORACLE_CHECK(qkvz_->apply(x, scratch.qkvz, step.stream));
    MORACLE_CHECK(ba_->apply(x, scratch.ba, step.stream));
    step.observer.done(StepPart::kAttentionLinears);
    const Matrix mixed = spec.by_key_head ? scratch.qkvz : columns(scratch.qkvz, 0, spec.mixed());
    const ConvolutionShape convolution{spec.kernel, true, step.cache.state + rule_bytes(spec),
                                       head_split()};
    MORACLE_CHECK(step.ops.convolve(mixed, floats(convolution_), convolution, step.batch,
                                    scratch.convolved, step.stream));
    GatedDeltaShape rule = shape_of(spec);
    rule.state = step.cache.state;
    rule.batch_invariant = step.batch_invariant;
    MORACLE_CHECK(step.ops.gated_delta(scratch.convolved, scratch.ba, floats(a_log_),
                                       floats(dt_bias_), rule, step.batch, scratch.out,
                                       scratch.rule, step.stream));
    MORACLE_CHECK(norm_and_gate(scratch, step));
    step.observer.done(StepPart::kAttention);
    MORACLE_CHECK(o_->apply(scratch.out, out, step.stream));
    step.observer.done(StepPart::kAttentionLinears);
    return {};
  }

 private:
  // Columns of one key head in qkvz, if they are stored by key head: q, k, its v and its z.
  int64_t group_dim() const { return 2 * spec_.key_dim + 2 * group_values(); }
  int64_t group_values() const { return spec_.value_heads_per_key() * spec_.value_dim; }

  // From heads side by side to all heads of q, then of k, then of v.
  HeadSplit head_split() const {
    if (!spec_.by_key_head) return {};
    return {spec_.num_key_heads, group_dim(), {spec_.key_dim, spec_.key_dim, group_values()}};
  }

  Status norm_and_gate(const Scratch& scratch, const AttentionStep& step) {
    const GatedDeltaSpec& spec = spec_;
    const GatedNorm norm{floats(norm_), spec.value_dim, spec.norm_epsilon,
                         spec.sigmoid_gate ? Gate::kSigmoid : Gate::kSilu};
    const int64_t first = spec.by_key_head ? 2 * spec.key_dim + group_values() : spec.mixed();
    const Matrix z = columns(scratch.qkvz, first, scratch.qkvz.cols - first);
    return step.ops.norm_and_gate(scratch.out, norm, z, group_dim(),
                                  spec.by_key_head ? group_values() : spec.values(), scratch.out,
                                  step.stream);
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
