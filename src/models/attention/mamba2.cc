// Mamba-2: a short convolution over x, b and c, a state space with one decay for each head, then a
// gate and RMSNorm. The sequence's state replaces keys and values.
#include "base/try.h"
#include "models/attention/attention.h"
#include "oracle/carve.h"

namespace moracle {
namespace mamba2 {
namespace {

// Within a sequence's state of this layer: first the heads', then the convolution's.
int64_t heads_bytes(const Mamba2Spec& spec) {
  return (spec.inner() * spec.state_dim * 4 + 63) / 64 * 64;
}
int64_t convolution_bytes(const Mamba2Spec& spec) {
  return ((spec.kernel - 1) * spec.mixed() * 4 + 63) / 64 * 64;
}

struct Scratch {
  Matrix projected, convolved, out;
  size_t bytes = 0;
};
Scratch carve(const Mamba2Spec& spec, int64_t tokens, DType dtype, std::byte* base) {
  Carver carver(base);
  Scratch scratch;
  scratch.projected = carver.take_matrix(dtype, tokens, spec.projected());
  scratch.convolved = carver.take_matrix(dtype, tokens, spec.mixed());
  scratch.out = carver.take_matrix(dtype, tokens, spec.inner());
  scratch.bytes = carver.bytes();
  return scratch;
}

class Mamba2 : public Attention {
 public:
  explicit Mamba2(const Mamba2Spec& spec) : spec_(spec) {}

  Status load(AttentionDescription&& description, Loader& loader) override {
    MORACLE_TRY(auto* from, same_attention<Mamba2Description>(description, spec_));
    MORACLE_CHECK(loader.load(convolution_, by_tap(from->convolution, spec_.kernel)));
    MORACLE_CHECK(loader.load(convolution_bias_, from->convolution_bias));
    MORACLE_CHECK(loader.load(a_log_, from->a_log));
    MORACLE_CHECK(loader.load(dt_bias_, from->dt_bias));
    MORACLE_CHECK(loader.load(d_, from->d));
    MORACLE_CHECK(loader.load(norm_, from->norm));
    MORACLE_CHECK(loader.load(in_, std::move(from->in)));
    return loader.load(o_, std::move(from->o));
  }

  Status apply(const LayerInput& input, const Matrix& out, const AttentionStep& step) override {
    const Mamba2Spec& spec = spec_;
    const Scratch scratch = carve(spec, input.x.rows, input.x.dtype, step.scratch);
    MORACLE_CHECK(in_->apply(input.x, scratch.projected, step.stream));
    step.observer.done(StepPart::kAttentionLinears);
    const Matrix z = columns(scratch.projected, 0, spec.inner()),
                 mixed = columns(scratch.projected, spec.inner(), spec.mixed()),
                 dt = columns(scratch.projected, spec.inner() + spec.mixed(), spec.num_heads);
    const ConvolutionShape convolution{
        spec.kernel, true, step.cache.state + heads_bytes(spec), {}, floats(convolution_bias_)};
    MORACLE_CHECK(step.ops.convolve(mixed, floats(convolution_), convolution, step.batch,
                                    scratch.convolved, step.stream));
    const Mamba2Shape shape{spec.num_heads,   spec.num_groups,     spec.head_dim,
                            spec.state_dim,   spec.least_step,     spec.most_step,
                            step.cache.state, step.batch_invariant};
    MORACLE_CHECK(step.ops.mamba2(scratch.convolved, dt, floats(a_log_), floats(dt_bias_),
                                  floats(d_), shape, step.batch, scratch.out, step.stream));
    MORACLE_CHECK(step.ops.gate_and_norm(scratch.out, z, floats(norm_), spec.norm_size,
                                         spec.norm_epsilon, step.stream));
    step.observer.done(StepPart::kAttention);
    MORACLE_CHECK(o_->apply(scratch.out, out, step.stream));
    step.observer.done(StepPart::kAttentionLinears);
    return {};
  }

 private:
  Mamba2Spec spec_;
  Buffer convolution_, convolution_bias_, a_log_, dt_bias_, d_, norm_;
  std::optional<AdaptedLinear> in_, o_;
};

}  // namespace
}  // namespace mamba2

AttentionSizes attention_sizes(const Mamba2Spec& spec, int64_t max_num_tokens, DType dtype) {
  return {0, 0, 0, mamba2::carve(spec, max_num_tokens, dtype, nullptr).bytes,
          static_cast<size_t>(mamba2::heads_bytes(spec) + mamba2::convolution_bytes(spec))};
}

std::unique_ptr<Attention> make_attention(const Mamba2Spec& spec) {
  return std::make_unique<mamba2::Mamba2>(spec);
}

}  // namespace moracle
