#include "kernels/cuda/gemm_sm90/wgmma_dense.h"

#include "kernels/cuda/gemm_sm90/wgmma_gemm.h"
#include "kernels/cuda/ops/quantize_vectors.h"

namespace moracle::cuda {
namespace {

// True if the kernels can write pairs of outputs.
bool in_pairs(const Matrix& y) {
  const uintptr_t pair = 2 * bits(y.dtype) / 8;
  return reinterpret_cast<uintptr_t>(y.data) % pair == 0 && y.stride % 2 == 0;
}
bool in_pieces(const Matrix& x) {
  return x.dtype == DType::kBF16 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
         x.stride % 8 == 0;
}

class WgmmaDense : public GroupedLinear {
 public:
  WgmmaDense(std::unique_ptr<GroupedLinear> others, WgmmaGemm gemm, CudaDevice& device)
      : others_(std::move(others)), gemm_(gemm), device_(device) {}

  Status run(const GroupedRows& rows, const Matrix& y, Stream stream) override {
    return others_->run(rows, y, stream);
  }
  Status run_dense(const Matrix& x, const Rows& scratch, const Matrix& y, Stream stream) override {
    const auto& key = weights().scheme.activation;
    Rows input = scratch.first(x.rows);
    GroupedRows rows{input, nullptr, nullptr, x.rows};
    if (in_pieces(x) && in_pairs(y)) {
      MORACLE_CHECK(
          key ? quantize_vectors(device_.queue(), x, *key, input, CodeOrder::kFragments, stream)
              : to_fragments(device_.queue(), x, input.values, stream));
      return gemm_.run(weights(), rows, {y, nullptr, 0}, nullptr, false, stream);
    }
    if (key)
      MORACLE_CHECK(device_.ops().quantize(x, *key, input, stream));
    else
      rows.x = Rows{x, nullptr, 0};
    return others_->run(rows, y, stream);
  }
  Status weights_replaced(Stream stream) override { return others_->weights_replaced(stream); }
  const KernelWeights& weights() const override { return others_->weights(); }

 private:
  std::unique_ptr<GroupedLinear> others_;
  WgmmaGemm gemm_;
  CudaDevice& device_;  // outlives its layers
};

}  // namespace

Result<std::unique_ptr<GroupedLinear>> make_wgmma_dense(std::unique_ptr<GroupedLinear> others,
                                                        CudaDevice& device) {
  MORACLE_TRY(const WgmmaGemm gemm, WgmmaGemm::make(others->weights(), device.queue()));
  return std::unique_ptr<GroupedLinear>(new WgmmaDense(std::move(others), gemm, device));
}

}  // namespace moracle::cuda
