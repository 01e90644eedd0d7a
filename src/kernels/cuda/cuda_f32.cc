// Backend "cuda-f32": linear layers with f32 weights, in canonical form. Routers of GGUF files have
// such weights. Sums are f32.
#include "base/text.h"
#include "kernels/check_ops.h"
#include "kernels/cuda/cuda_f32_plan.h"
#include "kernels/cuda/cuda_makers.h"
#include "kernels/cuda/dense/dense_f32.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/kernel_watch.h"

namespace moracle {
namespace cuda {
namespace {

class DenseF32Linear : public LinearKernel {
 public:
  static Error wrong(std::string need, std::string fact) {
    return {ErrorKind::kInvalidArgument, "", "backend cuda-f32", std::move(need), std::move(fact)};
  }

  DenseF32Linear(const KernelWeights& weights, const KernelPlan& plan, const Queue& queue)
      : weights_(weights),
        gemv_rows_(plan.deterministic ? 0 : kDenseGemvF32Rows),
        first_(plan.kernels.front().form),
        last_(plan.kernels.back().form),
        queue_(queue) {}

  Status run(const LinearCall& call, Stream stream) override {
    const GroupedRows& rows = *call.from<GroupedRows>();
    const Matrix &x = rows.x.values, &y = call.out;
    MORACLE_CHECK(check_floats("cuda", {&y}));
    if (x.dtype != DType::kBF16) return wrong("x in bf16", str("it is ", name(x.dtype)));
    if (rows.row_index != nullptr || rows.expert_offsets != nullptr)
      return wrong("all rows of x, in order", "they are gathered, or grouped by expert");
    const int64_t count = rows.num_rows;
    if (count == 0) return {};
    const MatrixShape& shape = weights_.shape;
    const bool gemv = count <= gemv_rows_;
    if (kernels_are_watched()) report({name(gemv ? first_ : last_), shape});
    const auto* const bias =
        shape.bias ? reinterpret_cast<const float*>(weights_.expert(0) + weights_.sections.bias)
                   : nullptr;
    const DenseF32 args{
        weights_.buffer.as<float>(), bias, shape.n, shape.k, x.slice(0, count), y.slice(0, count)};
    return gemv ? multiply_gemv_f32(queue_, args, stream) : multiply_gemm_f32(queue_, args, stream);
  }

 private:
  const KernelWeights& weights_;
  int64_t gemv_rows_;  // most rows of the GEMV
  KernelForm first_, last_;
  const Queue& queue_;  // owned by the device, which outlives its layers
};

}  // namespace

Result<std::unique_ptr<GroupedLinear>> make_f32(KernelWeights&& weights, const KernelPlan& plan,
                                                Device& device) {
  auto* gpu = dynamic_cast<CudaDevice*>(&device);
  if (gpu == nullptr) return DenseF32Linear::wrong("a cuda device", "it is " + device.name());
  if (weights.num_experts != 1)
    return DenseF32Linear::wrong("one matrix", str("there are ", weights.num_experts, " experts"));
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(gpu->queue().index));
  MORACLE_CHECK(load_dense_f32());
  auto linear = std::make_unique<GroupedLinear>(std::move(weights));
  linear->add<DenseF32Linear>(plan, gpu->queue());
  return linear;
}

}  // namespace cuda
}  // namespace moracle
