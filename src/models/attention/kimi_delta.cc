// Kimi Delta Attention (KDA): a short convolution over q, k and v, the gated delta rule with a
// decay for each channel of a key, then RMSNorm of each head and a sigmoid gate. Decays and gates
// come from the hidden state, most often through a vector of low rank.
#include "base/try.h"
#include "models/attention/attention.h"
#include "oracle/carve.h"

namespace moracle {
namespace kimi_delta {
namespace {

// Within a sequence's state of this layer: first the delta rule's, then the convolution's.
int64_t rule_bytes(const KimiDeltaSpec& spec) {
  return (spec.channels() * spec.head_dim * 4 + 63) / 64 * 64;
}
int64_t convolution_bytes(const KimiDeltaSpec& spec) {
  return ((spec.kernel - 1) * 3 * spec.channels() * 4 + 63) / 64 * 64;
}
// The decays begin at a multiple of 64 columns behind the strengths: kernels store whole vectors.
int64_t first_decay(const KimiDeltaSpec& spec) {
  return (spec.num_heads + 63) / 64 * 64;
}

GatedDeltaShape shape_of(const KimiDeltaSpec& spec) {
  GatedDeltaShape shape{spec.num_heads, spec.num_heads,    spec.head_dim,
                        spec.head_dim,  first_decay(spec), 0};
  shape.by_channel = true;
  shape.lower_bound = spec.lower_bound;
  return shape;
}

struct Scratch {
  Matrix qkv, strengths_and_decays, low_rank, gate, convolved, out;
  std::byte* rule = nullptr;
  size_t bytes = 0;
};
Scratch carve(const KimiDeltaSpec& spec, int64_t tokens, DType dtype, std::byte* base) {
  Carver carver(base);
  const auto take = [&](int64_t cols) { return carver.take_matrix(dtype, tokens, cols); };
  Scratch scratch;
  scratch.qkv = take(3 * spec.channels());
  scratch.strengths_and_decays = take(first_decay(spec) + spec.channels());
  scratch.low_rank = take(spec.rank);
  scratch.gate = take(spec.channels());
  scratch.convolved = take(3 * spec.channels());
  scratch.out = take(spec.channels());
  scratch.rule = carver.take<std::byte>(
      static_cast<int64_t>(gated_delta_scratch_bytes(shape_of(spec), tokens, dtype)));
  scratch.bytes = carver.bytes();
  return scratch;
}

class KimiDelta : public Attention {
 public:
  explicit KimiDelta(const KimiDeltaSpec& spec) : spec_(spec) {}

  Status load(AttentionDescription&& description, Loader& loader) override {
    MORACLE_TRY(auto* from, same_attention<KimiDeltaDescription>(description, spec_));
    MORACLE_CHECK(loader.load(convolution_, by_tap(from->convolution, spec_.kernel)));
    MORACLE_CHECK(loader.load(a_log_, from->a_log));
    MORACLE_CHECK(loader.load(dt_bias_, from->dt_bias));
    MORACLE_CHECK(loader.load(norm_, from->norm));
    MORACLE_CHECK(loader.load(qkv_, std::move(from->qkv)));
    MORACLE_CHECK(loader.load(strength_, std::move(from->strength)));
    if (from->decay_a) MORACLE_CHECK(loader.load(decay_a_, std::move(*from->decay_a)));
    MORACLE_CHECK(loader.load(decay_, std::move(from->decay)));
    if (from->gate_a) MORACLE_CHECK(loader.load(gate_a_, std::move(*from->gate_a)));
    MORACLE_CHECK(loader.load(gate_, std::move(from->gate)));
    return loader.load(o_, std::move(from->o));
  }

  Status apply(const LayerInput& input, const Matrix& out, const AttentionStep& step) override {
    const Matrix& x = input.x;
    const Scratch scratch = carve(spec_, x.rows, x.dtype, step.scratch);
    MORACLE_CHECK(linears(x, scratch, step));
    step.observer.done(StepPart::kAttentionLinears);
    const ConvolutionShape convolution{spec_.kernel, true, step.cache.state + rule_bytes(spec_)};
    MORACLE_CHECK(step.ops.convolve(scratch.qkv, floats(convolution_), convolution, step.batch,
                                    scratch.convolved, step.stream));
    GatedDeltaShape rule = shape_of(spec_);
    rule.state = step.cache.state;
    rule.batch_invariant = step.batch_invariant;
    MORACLE_CHECK(step.ops.gated_delta(scratch.convolved, scratch.strengths_and_decays,
                                       floats(a_log_), floats(dt_bias_), rule, step.batch,
                                       scratch.out, scratch.rule, step.stream));
    const GatedNorm norm{floats(norm_), spec_.head_dim, spec_.norm_epsilon, Gate::kSigmoid};
    const int64_t channels = spec_.channels();
    MORACLE_CHECK(step.ops.norm_and_gate(scratch.out, norm, scratch.gate, channels, channels,
                                         scratch.out, step.stream));
    step.observer.done(StepPart::kAttention);
    MORACLE_CHECK(o_->apply(scratch.out, out, step.stream));
    step.observer.done(StepPart::kAttentionLinears);
    return {};
  }

 private:
  Status linears(const Matrix& x, const Scratch& scratch, const AttentionStep& step) {
    const Matrix& both = scratch.strengths_and_decays;
    MORACLE_CHECK(qkv_->apply(x, scratch.qkv, step.stream));
    MORACLE_CHECK(strength_->apply(x, columns(both, 0, spec_.num_heads), step.stream));
    MORACLE_CHECK(through(decay_a_, *decay_, x, scratch,
                          columns(both, first_decay(spec_), spec_.channels()), step));
    return through(gate_a_, *gate_, x, scratch, scratch.gate, step);
  }
  // `last` reads x, or what `first` makes of it.
  static Status through(std::optional<AdaptedLinear>& first, AdaptedLinear& last, const Matrix& x,
                        const Scratch& scratch, const Matrix& out, const AttentionStep& step) {
    if (first) MORACLE_CHECK(first->apply(x, scratch.low_rank, step.stream));
    return last.apply(first ? scratch.low_rank : x, out, step.stream);
  }

  KimiDeltaSpec spec_;
  Buffer convolution_, a_log_, dt_bias_, norm_;
  std::optional<AdaptedLinear> qkv_, strength_, decay_, gate_, o_;
  std::optional<AdaptedLinear> decay_a_, gate_a_;  // present with a rank
};

}  // namespace
}  // namespace kimi_delta

AttentionSizes attention_sizes(const KimiDeltaSpec& spec, int64_t max_num_tokens, DType dtype) {
  return {0, 0, 0, kimi_delta::carve(spec, max_num_tokens, dtype, nullptr).bytes,
          static_cast<size_t>(kimi_delta::rule_bytes(spec) + kimi_delta::convolution_bytes(spec))};
}

std::unique_ptr<Attention> make_attention(const KimiDeltaSpec& spec) {
  return std::make_unique<kimi_delta::KimiDelta>(spec);
}

}  // namespace moracle
