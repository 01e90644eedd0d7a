// Linear layers by skinny GEMM.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/gemm_skinny/skinny_launch.h"
#include "kernels/cuda/ops/quantize_vectors.h"
#include "kernels/cuda/row_alignment.h"

namespace moracle::cuda {
namespace {

class SkinnyLinear : public LinearKernel {
 public:
  SkinnyLinear(const KernelWeights& weights, int64_t first, int64_t last, SkinnyLaunch gemm,
               CudaDevice& device)
      : weights_(weights), first_(first), last_(last), gemm_(gemm), device_(device) {}

  bool serves(const LinearCall& call) const override {
    const auto* const raw = call.from<LinearCall::Raw>();
    return raw != nullptr && call.to<LinearCall::Store>() != nullptr && raw->x.rows >= first_ &&
           raw->x.rows <= last_ && has_vector_rows(raw->x) && stores_pairs(call.out);
  }
  Status run(const LinearCall& call, Stream stream) override {
    const LinearCall::Raw& raw = *call.from<LinearCall::Raw>();
    const auto& key = weights_.scheme.activation;
    if (!key) return gemm_.run(weights_, Rows{raw.x, nullptr, 0}, call.out, stream);
    const Rows codes = raw.scratch.first(raw.x.rows);
    MORACLE_CHECK(
        quantize_vectors(device_.queue(), raw.x, *key, codes, CodeOrder::kNatural, stream));
    return gemm_.run(weights_, codes, call.out, stream);
  }

 private:
  const KernelWeights& weights_;
  int64_t first_, last_;
  SkinnyLaunch gemm_;
  CudaDevice& device_;  // outlives its layers
};

}  // namespace

Status add_skinny_linear(GroupedLinear& linear, int64_t first, int64_t last, CudaDevice& device) {
  MORACLE_TRY(const SkinnyLaunch gemm, SkinnyLaunch::make(linear.weights(), device.queue()));
  linear.add<SkinnyLinear>(first, last, gemm, device);
  return {};
}

}  // namespace moracle::cuda
