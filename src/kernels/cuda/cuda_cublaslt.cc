// Backend "cuda-cublaslt": linear layers with bf16 weights, in canonical form, through cuBLASLt. An
// own kernel is faster for few rows and few outputs. Products are exact, sums are f32. The order of
// the sums depends on the number of rows.
#if defined(MORACLE_WITH_CUBLASLT)
#include "base/text.h"
#include "kernels/check_ops.h"
#include "kernels/cuda/cuda_makers.h"
#include "kernels/cuda/dense/cublaslt_matmul.h"
#include "kernels/cuda/dense/cublaslt_plan.h"
#include "kernels/cuda/dense/few_router.h"
#include "kernels/cuda/dense/few_rows.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/kernel_watch.h"

namespace moracle {
namespace cuda {
namespace {

Error wrong(std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", "backend cuda-cublaslt", std::move(need),
          std::move(fact)};
}

class DenseLinear : public GroupedLinear {
 public:
  DenseLinear(KernelWeights weights, Buffer short_bias, Buffer arrived,
              std::shared_ptr<CublasLt> library, CudaDevice& device)
      : weights_(std::move(weights)),
        short_bias_(std::move(short_bias)),
        arrived_(std::move(arrived)),
        library_(std::move(library)),
        device_(device) {}

  Status run(const GroupedRows& rows, const Matrix& y, Stream stream) override {
    const Matrix& x = rows.x.values;
    const MatrixShape& shape = weights_.shape;
    if (x.dtype != DType::kBF16 || (y.dtype != DType::kBF16 && y.dtype != DType::kF32))
      return wrong("x in bf16, y in bf16 or f32",
                   str("they are ", name(x.dtype), " and ", name(y.dtype)));
    if (rows.row_index != nullptr || rows.expert_offsets != nullptr)
      return wrong("all rows of x, in order", "they are gathered, or grouped by expert");
    const int64_t count = rows.num_rows;
    if (count == 0) return {};
    if (kernels_are_watched()) report({dense_kernel_name(count, shape.n), shape});
    const Matrix from = x.slice(0, count), to = y.slice(0, count);
    if (is_few_rows(count, shape.n)) {
      return multiply_few_rows(device_.queue(),
                               {weights_.buffer.as<uint16_t>(), bias(), shape.n, shape.k, from, to},
                               stream);
    }
    const void* added = nullptr;  // cuBLASLt adds a bias of y's dtype
    if (shape.bias) added = y.dtype == DType::kF32 ? bias() : short_bias_.data();
    return library_->multiply({weights_.buffer.data(), added, shape.n, shape.k, from, to}, stream);
  }

  bool serves_router(const RouterCall& call) const override {
    return arrived_.bytes() > 0 && call.x.dtype == DType::kBF16 && few_router_serves(call);
  }
  Status run_router(const RouterCall& call, Stream stream) override {
    if (!serves_router(call)) return GroupedLinear::run_router(call, stream);
    const MatrixShape& shape = weights_.shape;
    if (kernels_are_watched()) report({dense_kernel_name(call.x.rows, shape.n), shape});
    const AddRmsNorm* norm = call.norm;
    if (norm != nullptr && !few_router_norms(*norm)) {
      MORACLE_CHECK(device_.ops().add_rms_norm(norm->x, norm->y, norm->weight, norm->epsilon,
                                               norm->out, stream));
      norm = nullptr;
    }
    return route_few_rows(
        device_.queue(),
        {weights_.buffer.as<uint16_t>(), bias(), shape.n, shape.k, call.x, call.logits}, call, norm,
        arrived_.as<unsigned>(), stream);
  }

  Status weights_replaced(Stream stream) override {
    if (!weights_.shape.bias) return {};
    const int64_t n = weights_.shape.n;
    const Matrix stored{const_cast<float*>(bias()), DType::kF32, 1, n, n};
    return device_.ops().convert(stored, {short_bias_.data(), DType::kBF16, 1, n, n}, stream);
  }
  const KernelWeights& weights() const override { return weights_; }

 private:
  const float* bias() const {
    if (!weights_.shape.bias) return nullptr;
    return reinterpret_cast<const float*>(weights_.expert(0) + weights_.sections.bias);
  }

  KernelWeights weights_;
  Buffer short_bias_;  // [n] bf16, rounded from the stored bias
  Buffer arrived_;     // counts blocks of few_router; empty: the matrix is no router
  std::shared_ptr<CublasLt> library_;
  CudaDevice& device_;  // outlives its layers
};

}  // namespace

Result<std::unique_ptr<GroupedLinear>> make_cublaslt(KernelWeights&& weights, const KernelPlan&,
                                                     Device& device) {
  auto* gpu = dynamic_cast<CudaDevice*>(&device);
  if (gpu == nullptr) return wrong("a cuda device", "it is " + device.name());
  if (weights.num_experts != 1)
    return wrong("one matrix", str("there are ", weights.num_experts, " experts"));
  const Turn turn = device.turn();
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(gpu->queue().index));
  MORACLE_CHECK(load_few_rows());
  std::shared_ptr<CublasLt>& library = gpu->cublaslt();
  if (!library) {
    MORACLE_TRY(library, CublasLt::open(device, gpu->queue()));
  }
  Buffer short_bias;
  if (weights.shape.bias) {
    MORACLE_TRY(short_bias, device.allocate(2 * weights.shape.n));
  }
  Buffer arrived;
  if (weights.shape.n <= kMostRouterOutputs) {
    const unsigned none = 0;
    MORACLE_TRY(arrived, device.allocate(sizeof none));
    MORACLE_CHECK(device.upload(arrived.data(), &none, sizeof none));
    MORACLE_CHECK(load_few_router());
  }
  auto linear = std::make_unique<DenseLinear>(std::move(weights), std::move(short_bias),
                                              std::move(arrived), library, *gpu);
  MORACLE_CHECK(linear->weights_replaced({}));
  MORACLE_CHECK(device.synchronize());
  return std::unique_ptr<GroupedLinear>(std::move(linear));
}

}  // namespace cuda
}  // namespace moracle
#endif
