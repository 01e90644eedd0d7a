// A linear layer of many rows in block-scaled fp8, multiplied by cuBLASLt.
#if defined(MORACLE_WITH_CUBLASLT)
#include "kernels/cuda/cuda_cublaslt_plan.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/dense/cublaslt_matmul.h"
#include "kernels/cuda/dense/unpack_rows.h"
#include "kernels/cuda/ops/quantize_vectors.h"
#include "kernels/kernel_watch.h"

namespace moracle::cuda {
namespace {

constexpr int64_t kRowUnit = 4;  // cuBLASLt needs a multiple of this many rows

bool copies_vectors(const Matrix& m) {
  return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.stride * bits(m.dtype) % 128 == 0;
}

class CublasLtBlocks : public LinearKernel {
 public:
  CublasLtBlocks(const KernelWeights& weights, int64_t tokens, std::shared_ptr<CublasLt> library,
                 std::shared_ptr<const Buffer> scratch, CudaDevice& device)
      : weights_(weights),
        tokens_(tokens),
        library_(std::move(library)),
        scratch_(std::move(scratch)),
        at_(cublaslt_block_scratch(weights.shape)),
        device_(device) {}

  bool serves(const LinearCall& call) const override {
    const auto* const raw = call.from<LinearCall::Raw>();
    return raw != nullptr && call.to<LinearCall::Store>() != nullptr && raw->x.rows >= tokens_ &&
           raw->x.dtype == DType::kBF16 && copies_vectors(raw->x) && copies_vectors(call.out);
  }
  Status run(const LinearCall& call, Stream stream) override {
    const LinearCall::Raw& raw = *call.from<LinearCall::Raw>();
    if (kernels_are_watched()) report({name(kCublasLtBlocksForm), weights_.shape});
    MORACLE_CHECK(library_->order().begin(stream));
    const Status done = multiply(raw.x, raw.scratch, call.out, stream);
    library_->order().end(stream);
    return done;
  }

 private:
  Status multiply(const Matrix& x, const Rows& scratch, const Matrix& y, Stream stream) {
    MORACLE_CHECK(unpack_rows(device_.queue(), weights_, at_, scratch_->as<uint8_t>(), stream));
    const int64_t rest = x.rows % kRowUnit, whole = x.rows - rest;
    // Quantize while the weights are copied.
    MORACLE_CHECK(
        multiply(x, 0, whole, scratch.values, scratch.scales, y, Overlap::kPrevious, stream));
    if (rest == 0) return {};
    // Multiply the remaining rows together with earlier ones, as a whole unit. The earlier rows get
    // the same values again.
    return multiply(x, x.rows - kRowUnit, kRowUnit, scratch.values,
                    reinterpret_cast<float*>(scratch_->as<uint8_t>() + at_.row_scales), y,
                    Overlap::kNone, stream);
  }
  Status multiply(const Matrix& x, int64_t first, int64_t count, const Matrix& codes, float* scales,
                  const Matrix& y, Overlap overlap, Stream stream) {
    const KernelWeights& w = weights_;
    const QuantKey& key = *w.scheme.activation;
    const Rows to{codes.slice(first, count), scales, w.shape.k / key.group.cols};
    MORACLE_CHECK(quantize_vectors(device_.queue(), x.slice(first, count), key, to,
                                   CodeOrder::kFragments, stream, overlap, ScaleOrder::kByGroup));
    const auto* const rows = scratch_->as<uint8_t>();
    DenseProduct product{rows, nullptr, w.shape.n, w.shape.k, to.values, y.slice(first, count)};
    product.weight_scales = reinterpret_cast<const float*>(rows + at_.weight_scales);
    product.x_scales = scales;
    return library_->multiply(product, stream);
  }

  const KernelWeights& weights_;
  int64_t tokens_;
  std::shared_ptr<CublasLt> library_;
  std::shared_ptr<const Buffer> scratch_;
  CublasLtBlockScratch at_;
  CudaDevice& device_;  // outlives its layers
};

}  // namespace

Status add_cublaslt_blocks(GroupedLinear& linear, int64_t tokens, CudaDevice& device) {
  const DeviceLock lock = device.lock();
  std::shared_ptr<CublasLt>& library = device.cublaslt();
  if (!library) {
    MORACLE_TRY(library, CublasLt::open(device, device.queue()));
  }
  const int64_t bytes = cublaslt_block_scratch(linear.weights().shape).bytes;
  MORACLE_TRY(std::shared_ptr<const Buffer> scratch, library->scratch(device, bytes));
  linear.add<CublasLtBlocks>(tokens, library, std::move(scratch), device);
  return {};
}

}  // namespace moracle::cuda
#endif
