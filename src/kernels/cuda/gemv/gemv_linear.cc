// Linear layers by GEMV.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/gemv/gemv_launch.h"

namespace moracle::cuda {
namespace {

class GemvLinear : public LinearKernel {
 public:
  GemvLinear(const KernelWeights& weights, GemvLaunch gemv, int64_t most_tokens)
      : weights_(weights), gemv_(gemv), most_tokens_(most_tokens) {}

  bool serves(const LinearCall& call) const override {
    if (call.to<LinearCall::Store>() == nullptr) return false;
    if (const auto* const normed = call.from<NormedInput>())
      return normed->sum.data != nullptr && call.x().rows <= most_tokens_ &&
             gemv_.serves_norm(weights_, *normed);
    const auto* const rows = call.from<GroupedRows>();
    return rows != nullptr && rows->num_rows > 0 && rows->num_rows <= most_tokens_ &&
           in_vectors(rows->x.values);
  }
  Status run(const LinearCall& call, Stream stream) override {
    const auto* const normed = call.from<NormedInput>();
    const auto* const rows = call.from<GroupedRows>();
    const auto tokens = static_cast<int>(normed != nullptr ? call.x().rows : rows->num_rows);
    // Each token has the one expert.
    const GemvSlots slots{nullptr, nullptr, nullptr, tokens, tokens, 1, 1, 1, nullptr, nullptr};
    if (normed != nullptr) return gemv_.run_normed(weights_, *normed, call.out, slots, stream);
    if (gemv_.serves_dense(weights_, tokens))
      return gemv_.run_dense(weights_, rows->x, call.out, slots, stream);
    return gemv_.run_rows(weights_, rows->x, false, call.out, nullptr, slots,
                          gemv_choice(tokens, 1, 1), true, stream);
  }

 private:
  // True if 16-byte loads can read the rows.
  bool in_vectors(const Matrix& x) const {
    const int64_t vector = weights_.scheme.activation ? 16 : 8;
    return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % vector == 0 &&
           x.cols % 16 == 0;
  }

  const KernelWeights& weights_;
  GemvLaunch gemv_;
  int64_t most_tokens_;
};

}  // namespace

Status add_gemv_linear(GroupedLinear& linear, int64_t most_tokens, CudaDevice& device) {
  MORACLE_TRY(const GemvLaunch gemv, GemvLaunch::make(linear.weights(), device.queue()));
  linear.add<GemvLinear>(gemv, most_tokens);
  return {};
}

}  // namespace moracle::cuda
