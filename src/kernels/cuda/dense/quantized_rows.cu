#include "kernels/cuda/dense/quantized_rows.cuh"

#include <algorithm>

#include "kernels/cuda/decode/few_launch.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/gemm_sm80/mma_choice.h"
#include "kernels/kernel_watch.h"
#include "quant/activation.h"

namespace moracle::cuda {
namespace {

using Kernel = void (*)(QuantizedArgs);

// The kernel for weights of 8 bits with scales in f32, of which a stage has one; null: none.
Kernel kernel_for(const MatrixShape& shape, const Scheme& scheme) {
  const auto& key = scheme.activation;
  if (!key || !key->dynamic || shape.group_index || !shape.key.symmetric ||
      key->scale_dtype == DType::kF8E8M0 || shape.key.scale_dtype == DType::kF8E8M0 ||
      shape.k % kQuantizedGroup != 0 || shape.k > kMostQuantizedCols)
    return nullptr;
  const bool in_groups = mma_in_groups(shape, scheme);
  if (shape.key.dtype == DType::kI8 && key->dtype == DType::kI8)
    return in_groups ? nullptr : quantized_rows<Int8Int8Operand<false>>;
  if (shape.key.dtype != DType::kF8E4M3 || key->dtype != DType::kF8E4M3) return nullptr;
  if (!in_groups) return quantized_rows<Fp8Fp8Operand<false>>;
  const bool fits = shape.key.group.cols == kQuantizedGroup && key->group.cols == kQuantizedGroup;
  return fits ? quantized_rows<Fp8Fp8Operand<true>> : nullptr;
}

class QuantizedRows : public GroupedLinear {
 public:
  QuantizedRows(std::unique_ptr<GroupedLinear> others, Kernel kernel, int64_t most_shared,
                const Queue& queue)
      : others_(std::move(others)), kernel_(kernel), most_shared_(most_shared), queue_(queue) {}

  Status run(const GroupedRows& rows, const Matrix& y, Stream stream) override {
    return others_->run(rows, y, stream);
  }
  Status run_dense(const Matrix& x, const Rows& scratch, const Matrix& y, Stream stream) override {
    return others_->run_dense(x, scratch, y, stream);
  }
  bool quantizes_input(const Matrix& x) const override {
    return x.rows >= 1 && x.rows <= kMostQuantizedRows && x.dtype == DType::kBF16 &&
           x.stride % 8 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
           stages(x.rows) >= kLeastFewStages;
  }
  Status run_unquantized(const Matrix& x, const Matrix& y, Stream stream) override {
    if (!quantizes_input(x)) return GroupedLinear::run_unquantized(x, y, stream);
    return run(x, nullptr, y, stream);
  }
  bool serves_norm(const NormedInput& x) const override {
    const AddRmsNorm& norm = x.norm;
    return quantizes_input(norm.out) && are_eights({&norm.x, &norm.y, &x.sum}, norm.weight);
  }
  Status run_normed(const NormedInput& x, const Matrix& y, Stream stream) override {
    if (!serves_norm(x)) return GroupedLinear::run_normed(x, y, stream);
    return run(x.norm.out, &x, y, stream);
  }
  Status weights_replaced(Stream stream) override { return others_->weights_replaced(stream); }
  const KernelWeights& weights() const override { return others_->weights(); }

 private:
  // A panel of codes, with 16 scales.
  static constexpr int kStageBytes = kFewPanelBytes + 64;

  // Shared memory beside the rings and the sums.
  int64_t fixed_bytes(int64_t rows) const {
    return static_cast<int64_t>(sizeof(QuantizedShared)) + quantized_bytes(rows, weights().shape.k);
  }
  // Stages of a ring that the rest has room for.
  int stages(int64_t rows) const {
    const int64_t room = most_shared_ - kFewSumBytes - fixed_bytes(rows);
    return static_cast<int>(std::min<int64_t>(room / (kFewWarps<1> * kStageBytes), kMostFewStages));
  }
  Status run(const Matrix& x, const NormedInput* normed, const Matrix& y, Stream stream) {
    const KernelWeights& w = weights();
    const QuantKey& key = *w.scheme.activation;
    const auto tokens = static_cast<int>(x.rows);
    QuantizedArgs args{};
    const Rows codes{
        {nullptr, key.dtype, x.rows, x.cols, x.cols}, nullptr, moracle::num_groups(key, x.cols)};
    args.few.matrix = mma_args(w, {codes, nullptr, nullptr, x.rows}, y);
    args.few.slots = {nullptr, nullptr, nullptr, tokens, tokens, 1, 1, 1, nullptr, nullptr};
    const FewDenseShare share = share_dense(args.few, w.shape.key.dtype, queue_.multiprocessors);
    args.few.stages = std::min(stages(x.rows), share.most_stages),
    args.few.stage_bytes = kStageBytes, args.few.scale_bytes = 64, args.few.scale_shift = 2;
    args.key = key, args.x = x, args.norms = normed != nullptr;
    if (normed != nullptr) args.few.normed = *normed;
    if (kernels_are_watched()) moracle::report({few_kernel_name(w.scheme, 8, false), w.shape});
    const int64_t shared = fixed_bytes(x.rows) + share.sum_bytes +
                           int64_t{kFewWarps<1>} * args.few.stages * kStageBytes;
    return launch_early(queue_, stream, "quantized_rows", kernel_,
                        std::clamp<int64_t>(args.few.matrix.panels, 1, queue_.multiprocessors),
                        kFewThreads<1>, static_cast<size_t>(shared), args);
  }

  std::unique_ptr<GroupedLinear> others_;
  Kernel kernel_;
  int64_t most_shared_;  // bytes of a block
  const Queue& queue_;
};

}  // namespace

Result<std::unique_ptr<GroupedLinear>> make_quantized_rows(std::unique_ptr<GroupedLinear> others,
                                                           CudaDevice& device) {
  const KernelWeights& weights = others->weights();
  const Kernel kernel = kernel_for(weights.shape, weights.scheme);
  if (kernel == nullptr) return Result<std::unique_ptr<GroupedLinear>>(std::move(others));
  const Queue& queue = device.queue();
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
  int most_shared = 0;
  MORACLE_CUDA(
      cudaDeviceGetAttribute(&most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, queue.index));
  MORACLE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared));
  return std::unique_ptr<GroupedLinear>(
      new QuantizedRows(std::move(others), kernel, most_shared, queue));
}

}  // namespace moracle::cuda
