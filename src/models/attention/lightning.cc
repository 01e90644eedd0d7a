// Lightning attention: linear attention over SiLU of q, k and v, then RMSNorm over all heads and a
// sigmoid gate. The sequence's state, which decays by a constant of each head, replaces keys and
// values.
#include "base/try.h"
#include "models/attention/attention.h"
#include "oracle/carve.h"

namespace moracle {
namespace lightning {
namespace {

struct Scratch {
  Matrix qkv, gate, out;
  size_t bytes = 0;
};
Scratch carve(const LightningSpec& spec, int64_t tokens, DType dtype, std::byte* base) {
  Carver carver(base);
  Scratch scratch;
  scratch.qkv = carver.take_matrix(dtype, tokens, 3 * spec.channels());
  scratch.gate = carver.take_matrix(dtype, tokens, spec.channels());
  scratch.out = carver.take_matrix(dtype, tokens, spec.channels());
  scratch.bytes = carver.bytes();
  return scratch;
}

class Lightning : public Attention {
 public:
  explicit Lightning(const LightningSpec& spec) : spec_(spec) {}

  Status load(AttentionDescription&& description, Loader& loader) override {
    MORACLE_TRY(auto* from, same_attention<LightningDescription>(description, spec_));
    MORACLE_CHECK(loader.load(decays_, from->decays));
    MORACLE_CHECK(loader.load(norm_, from->norm));
    MORACLE_CHECK(loader.load(qkv_, std::move(from->qkv)));
    MORACLE_CHECK(loader.load(gate_, std::move(from->gate)));
    return loader.load(o_, std::move(from->o));
  }

  Status apply(const LayerInput& input, const Matrix& out, const AttentionStep& step) override {
    const Scratch scratch = carve(spec_, input.x.rows, input.x.dtype, step.scratch);
    MORACLE_CHECK(qkv_->apply(input.x, scratch.qkv, step.stream));
    MORACLE_CHECK(gate_->apply(input.x, scratch.gate, step.stream));
    step.observer.done(StepPart::kAttentionLinears);
    const LightningShape shape{spec_.num_heads, spec_.head_dim, step.cache.state,
                               step.batch_invariant};
    MORACLE_CHECK(step.ops.lightning(scratch.qkv, floats(decays_), shape, step.batch, scratch.out,
                                     step.stream));
    const int64_t channels = spec_.channels();
    const GatedNorm norm{floats(norm_), channels, spec_.norm_epsilon, Gate::kSigmoid};
    MORACLE_CHECK(step.ops.norm_and_gate(scratch.out, norm, scratch.gate, channels, channels,
                                         scratch.out, step.stream));
    step.observer.done(StepPart::kAttention);
    MORACLE_CHECK(o_->apply(scratch.out, out, step.stream));
    step.observer.done(StepPart::kAttentionLinears);
    return {};
  }

 private:
  LightningSpec spec_;
  Buffer decays_, norm_;
  std::optional<AdaptedLinear> qkv_, gate_, o_;
};

}  // namespace
}  // namespace lightning

AttentionSizes attention_sizes(const LightningSpec& spec, int64_t max_num_tokens, DType dtype) {
  return {0, 0, 0, lightning::carve(spec, max_num_tokens, dtype, nullptr).bytes,
          static_cast<size_t>((spec.channels() * spec.head_dim * 4 + 63) / 64 * 64)};
}

std::unique_ptr<Attention> make_attention(const LightningSpec& spec) {
  return std::make_unique<lightning::Lightning>(spec);
}

}  // namespace moracle
