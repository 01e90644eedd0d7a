// A gated short convolution in the place of attention (LFM2). The sequence's state is the last
// inputs of the convolution.
#include "base/try.h"
#include "models/attention/attention.h"
#include "oracle/carve.h"

namespace moracle {
namespace short_convolution {
namespace {

struct Scratch {
  Matrix bcx, convolved;
  size_t bytes = 0;
};
Scratch carve(const ShortConvolutionSpec& spec, int64_t tokens, DType dtype, std::byte* base) {
  Carver carver(base);
  Scratch scratch;
  scratch.bcx = carver.take_matrix(dtype, tokens, 3 * spec.hidden_size);
  scratch.convolved = carver.take_matrix(dtype, tokens, spec.hidden_size);
  scratch.bytes = carver.bytes();
  return scratch;
}

class ShortConvolution : public Attention {
 public:
  explicit ShortConvolution(const ShortConvolutionSpec& spec) : spec_(spec) {}

  Status load(AttentionDescription&& description, Loader& loader) override {
    MORACLE_TRY(auto* from, same_attention<ShortConvolutionDescription>(description, spec_));
    MORACLE_CHECK(loader.load(convolution_, by_tap(from->convolution, spec_.kernel)));
    MORACLE_CHECK(loader.load(bcx_, std::move(from->bcx)));
    return loader.load(o_, std::move(from->o));
  }

  Status apply(const LayerInput& input, const Matrix& out, const AttentionStep& step) override {
    const int64_t size = spec_.hidden_size;
    const Scratch scratch = carve(spec_, input.x.rows, input.x.dtype, step.scratch);
    const Matrix b = columns(scratch.bcx, 0, size), c = columns(scratch.bcx, size, size),
                 x = columns(scratch.bcx, 2 * size, size);
    const auto multiply = [&](const Matrix& to, const Matrix& by) {
      return step.ops.gate(to, 0, by, 0, 1, size, Gate::kIdentity, step.stream);
    };
    MORACLE_CHECK(bcx_->apply(input.x, scratch.bcx, step.stream));
    step.observer.done(StepPart::kAttentionLinears);
    MORACLE_CHECK(multiply(x, b));
    const ConvolutionShape shape{spec_.kernel, false, step.cache.state};
    MORACLE_CHECK(step.ops.convolve(x, floats(convolution_), shape, step.batch, scratch.convolved,
                                    step.stream));
    MORACLE_CHECK(multiply(scratch.convolved, c));
    step.observer.done(StepPart::kAttention);
    MORACLE_CHECK(o_->apply(scratch.convolved, out, step.stream));
    step.observer.done(StepPart::kAttentionLinears);
    return {};
  }

 private:
  ShortConvolutionSpec spec_;
  Buffer convolution_;
  std::optional<AdaptedLinear> bcx_, o_;
};

}  // namespace
}  // namespace short_convolution

AttentionSizes attention_sizes(const ShortConvolutionSpec& spec, int64_t max_num_tokens,
                               DType dtype) {
  const int64_t state = ((spec.kernel - 1) * spec.hidden_size * 4 + 63) / 64 * 64;
  return {0, 0, 0, short_convolution::carve(spec, max_num_tokens, dtype, nullptr).bytes,
          static_cast<size_t>(state)};
}

std::unique_ptr<Attention> make_attention(const ShortConvolutionSpec& spec) {
  return std::make_unique<short_convolution::ShortConvolution>(spec);
}

}  // namespace moracle
