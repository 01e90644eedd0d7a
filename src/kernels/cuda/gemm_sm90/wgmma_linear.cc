// Linear layers of many tokens on wgmma.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/gemm_sm90/wgmma_launch.h"
#include "kernels/cuda/ops/quantize_vectors.h"
#include "kernels/cuda/row_alignment.h"

namespace moracle::cuda {
namespace {

class WgmmaDense : public LinearKernel {
 public:
  WgmmaDense(const KernelWeights& weights, int64_t tokens, WgmmaLaunch gemm, CudaDevice& device)
      : weights_(weights), tokens_(tokens), gemm_(gemm), device_(device) {}

  bool serves(const LinearCall& call) const override {
    const auto* const raw = call.from<LinearCall::Raw>();
    return raw != nullptr && call.to<LinearCall::Store>() != nullptr && raw->x.rows >= tokens_ &&
           has_vector_rows(raw->x) && stores_pairs(call.out);
  }
  Status run(const LinearCall& call, Stream stream) override {
    const LinearCall::Raw& raw = *call.from<LinearCall::Raw>();
    const auto& key = weights_.scheme.activation;
    const Rows input = raw.scratch.first(raw.x.rows);
    MORACLE_CHECK(
        key ? quantize_vectors(device_.queue(), raw.x, *key, input, wgmma_order(weights_), stream)
            : to_fragments(device_.queue(), raw.x, input.values, stream));
    return gemm_.run(weights_, {input, nullptr, nullptr, raw.x.rows}, {call.out, nullptr, 0},
                     nullptr, stream);
  }

 private:
  const KernelWeights& weights_;
  int64_t tokens_;
  WgmmaLaunch gemm_;
  CudaDevice& device_;  // outlives its layers
};

}  // namespace

Status add_wgmma_dense(GroupedLinear& linear, int64_t tokens, CudaDevice& device) {
  MORACLE_TRY(const WgmmaLaunch gemm, WgmmaLaunch::make(linear.weights(), false, device.queue()));
  linear.add<WgmmaDense>(tokens, gemm, device);
  return {};
}

}  // namespace moracle::cuda
