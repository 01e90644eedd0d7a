// Backend "cuda-cublaslt": linear layers with bf16 weights, in canonical form, through cuBLASLt. A
// GEMV kernel is faster for few rows and few outputs. Products are exact, sums are f32. The order
// of the sums depends on the number of rows.
#if defined(MORACLE_WITH_CUBLASLT)
#include "base/text.h"
#include "kernels/check_ops.h"
#include "kernels/cuda/cuda_cublaslt_plan.h"
#include "kernels/cuda/cuda_makers.h"
#include "kernels/cuda/dense/cublaslt_matmul.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/gemv/dense_bf16.h"
#include "kernels/cuda/gemv/gemv_plan.h"
#include "kernels/cuda/gemv/router.h"
#include "kernels/cuda/planned_tokens.h"
#include "kernels/kernel_watch.h"

namespace moracle {
namespace cuda {
namespace {

constexpr CudaForm kSplitColumns{CudaForm::Kernel::kSplitColumns},
    kLibrary{CudaForm::Kernel::kCublasLt};

Error wrong(std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", "backend cuda-cublaslt", std::move(need),
          std::move(fact)};
}

const float* bias_of(const KernelWeights& weights) {
  if (!weights.shape.bias) return nullptr;
  return reinterpret_cast<const float*>(weights.expert(0) + weights.sections.bias);
}

DenseBf16 dense_bf16_of(const KernelWeights& weights, const Matrix& x, const Matrix& y) {
  return {weights.buffer.as<uint16_t>(), bias_of(weights), weights.shape.n, weights.shape.k, x, y};
}

// A router: norm, logits and the choice of experts.
class GemvRouter : public LinearKernel {
 public:
  GemvRouter(const KernelWeights& weights, Buffer arrived, CudaDevice& device)
      : weights_(weights), arrived_(std::move(arrived)), device_(device) {}

  bool serves(const LinearCall& call) const override {
    const auto* const normed = call.from<NormedInput>();
    return call.from<GroupedRows>() == nullptr && call.x().dtype == DType::kBF16 &&
           (normed == nullptr || normed->sum.data == nullptr) && gemv_router_serves(call);
  }
  Status run(const LinearCall& call, Stream stream) override {
    const Matrix& x = call.x();
    if (kernels_are_watched()) report({name(kSplitColumns), weights_.shape});
    const auto* const normed = call.from<NormedInput>();
    const AddRmsNorm* norm = normed != nullptr ? &normed->norm : nullptr;
    if (norm != nullptr && !gemv_router_norms(*norm)) {
      MORACLE_CHECK(device_.ops().add_rms_norm(norm->x, norm->y, norm->weight, norm->epsilon,
                                               norm->out, stream));
      norm = nullptr;
    }
    return route_gemv(device_.queue(), dense_bf16_of(weights_, x, call.out),
                      *call.to<LinearCall::Route>(), norm, arrived_.as<unsigned>(), stream);
  }

 private:
  const KernelWeights& weights_;
  Buffer arrived_;      // counts blocks
  CudaDevice& device_;  // outlives its layers
};

class DenseLinear : public LinearKernel {
 public:
  DenseLinear(const KernelWeights& weights, int64_t gemv_rows, Buffer short_bias,
              std::shared_ptr<CublasLt> library, const Queue& queue)
      : weights_(weights),
        gemv_rows_(gemv_rows),
        short_bias_(std::move(short_bias)),
        library_(std::move(library)),
        queue_(queue) {}

  Status run(const LinearCall& call, Stream stream) override {
    const GroupedRows& rows = *call.from<GroupedRows>();
    const Matrix &x = rows.x.values, &y = call.out;
    const MatrixShape& shape = weights_.shape;
    if (x.dtype != DType::kBF16 || (y.dtype != DType::kBF16 && y.dtype != DType::kF32))
      return wrong("x in bf16, y in bf16 or f32",
                   str("they are ", name(x.dtype), " and ", name(y.dtype)));
    if (rows.row_index != nullptr || rows.expert_offsets != nullptr)
      return wrong("all rows of x, in order", "they are gathered, or grouped by expert");
    const int64_t count = rows.num_rows;
    if (count == 0) return {};
    const bool gemv = count <= gemv_rows_;
    if (kernels_are_watched()) report({name(gemv ? kSplitColumns : kLibrary), shape});
    const Matrix from = x.slice(0, count), to = y.slice(0, count);
    if (gemv) return multiply_dense_bf16(queue_, dense_bf16_of(weights_, from, to), stream);
    const void* added = nullptr;  // cuBLASLt adds a bias of y's dtype
    if (shape.bias) added = y.dtype == DType::kF32 ? bias_of(weights_) : short_bias_.data();
    return library_->multiply({weights_.buffer.data(), added, shape.n, shape.k, from, to}, stream);
  }

 private:
  const KernelWeights& weights_;
  int64_t gemv_rows_;  // most rows of the GEMV; cuBLASLt multiplies more rows
  Buffer short_bias_;  // [n] bf16, rounded from the stored bias
  std::shared_ptr<CublasLt> library_;
  const Queue& queue_;  // owned by the device, which outlives its layers
};

}  // namespace

Result<std::unique_ptr<GroupedLinear>> make_cublaslt(KernelWeights&& weights,
                                                     const KernelPlan& plan, Device& device) {
  auto* gpu = dynamic_cast<CudaDevice*>(&device);
  if (gpu == nullptr) return wrong("a cuda device", "it is " + device.name());
  if (weights.num_experts != 1)
    return wrong("one matrix", str("there are ", weights.num_experts, " experts"));
  const DeviceLock lock = device.lock();
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(gpu->queue().index));
  MORACLE_CHECK(load_dense_bf16());
  std::shared_ptr<CublasLt>& library = gpu->cublaslt();
  if (!library) {
    MORACLE_TRY(library, CublasLt::open(device, gpu->queue()));
  }
  Buffer short_bias;
  GroupedLinear::Refresh refresh;
  if (weights.shape.bias) {
    MORACLE_TRY(short_bias, device.allocate(2 * weights.shape.n));
    refresh = [to = short_bias.data(), gpu](const KernelWeights& fresh, Stream stream) {
      const int64_t n = fresh.shape.n;
      const Matrix stored{const_cast<float*>(bias_of(fresh)), DType::kF32, 1, n, n};
      return gpu->ops().convert(stored, {to, DType::kBF16, 1, n, n}, stream);
    };
  }
  auto linear = std::make_unique<GroupedLinear>(std::move(weights), std::move(refresh));
  if (linear->weights().shape.n <= kMostRouterOutputs) {
    const unsigned none = 0;
    MORACLE_TRY(Buffer arrived, device.allocate(sizeof none));
    MORACLE_CHECK(device.upload(arrived.data(), &none, sizeof none));
    MORACLE_CHECK(load_gemv_router());
    linear->add<GemvRouter>(std::move(arrived), *gpu);
  }
  const auto gemv = planned_tokens(plan, CudaForm::Kernel::kSplitColumns, false);
  linear->add<DenseLinear>(gemv ? std::min(gemv->last, kDenseGemvRows) : 0, std::move(short_bias),
                           library, gpu->queue());
  MORACLE_CHECK(linear->weights_replaced({}));
  MORACLE_CHECK(device.synchronize());
  return linear;
}

}  // namespace cuda
}  // namespace moracle
#endif
