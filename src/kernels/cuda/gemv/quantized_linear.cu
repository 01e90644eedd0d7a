#include "kernels/cuda/gemv/quantized_linear.cuh"

#include <algorithm>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/gemv/gemv_launch.h"
#include "kernels/cuda/operands/scaling_plan.h"
#include "kernels/cuda/tiles/arguments.h"
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
  const bool in_groups = scales_in_groups(shape, scheme);
  if (shape.key.dtype == DType::kI8 && key->dtype == DType::kI8)
    return in_groups ? nullptr : gemv_quantized_linear<Int8Int8Operand<false>>;
  if (shape.key.dtype != DType::kF8E4M3 || key->dtype != DType::kF8E4M3) return nullptr;
  if (!in_groups) return gemv_quantized_linear<Fp8Fp8Operand<false>>;
  const bool fits = shape.key.group.cols == kQuantizedGroup && key->group.cols == kQuantizedGroup;
  return fits ? gemv_quantized_linear<Fp8Fp8Operand<true>> : nullptr;
}

class QuantizedLinear : public LinearKernel {
 public:
  QuantizedLinear(const KernelWeights& weights, Kernel kernel, int64_t most_shared,
                  const Queue& queue)
      : weights_(weights), kernel_(kernel), most_shared_(most_shared), queue_(queue) {}

  bool serves(const LinearCall& call) const override {
    const Matrix& x = call.x();
    if (call.from<GroupedRows>() != nullptr || call.to<LinearCall::Store>() == nullptr ||
        x.rows < 1 || x.rows > kMostQuantizedTokens || x.dtype != DType::kBF16 ||
        x.stride % 8 != 0 || reinterpret_cast<uintptr_t>(x.data) % 16 != 0 ||
        stages(x.rows) < kLeastRingStages)
      return false;
    const auto* const normed = call.from<NormedInput>();
    if (normed == nullptr) return true;
    const AddRmsNorm& norm = normed->norm;
    return normed->sum.data != nullptr && are_eights({&norm.x, &norm.y, &normed->sum}, norm.weight);
  }
  Status run(const LinearCall& call, Stream stream) override {
    return run(call.x(), call.from<NormedInput>(), call.out, stream);
  }

 private:
  // A panel of codes, with 16 scales.
  static constexpr int kStageBytes = kStagePanelBytes<Int8Int8Operand<false>> + 64;

  // Shared memory beside the rings and the sums.
  int64_t fixed_bytes(int64_t rows) const {
    return static_cast<int64_t>(sizeof(QuantizedShared)) + quantized_bytes(rows, weights_.shape.k);
  }
  // Stages of a ring that fit beside the rest.
  int stages(int64_t rows) const {
    const int64_t left = most_shared_ - kLinearSumBytes - fixed_bytes(rows);
    return static_cast<int>(
        std::min<int64_t>(left / (kGemvWarps<1> * kStageBytes), kMostRingStages));
  }
  Status run(const Matrix& x, const NormedInput* normed, const Matrix& y, Stream stream) {
    const KernelWeights& w = weights_;
    const QuantKey& key = *w.scheme.activation;
    const auto tokens = static_cast<int>(x.rows);
    QuantizedArgs args{};
    const Rows codes{
        {nullptr, key.dtype, x.rows, x.cols, x.cols}, nullptr, moracle::num_groups(key, x.cols)};
    args.gemv.matrix = gemm_args(w, {codes, nullptr, nullptr, x.rows}, y);
    args.gemv.slots = {nullptr, nullptr, nullptr, tokens, tokens, 1, 1, 1, nullptr, nullptr};
    const LinearShare share = share_dense(args.gemv, w.shape, w.scheme, queue_.num_sms);
    args.gemv.stages = std::min(stages(x.rows), share.most_stages),
    args.gemv.stage_bytes = kStageBytes, args.gemv.scale_bytes = 64, args.gemv.scale_shift = 2;
    args.key = key, args.x = x, args.norms = normed != nullptr;
    if (normed != nullptr) args.gemv.normed = *normed;
    if (kernels_are_watched())
      moracle::report({name(gemv_form(w.shape, w.scheme, 8, false)), w.shape});
    const int64_t shared = fixed_bytes(x.rows) + share.sum_bytes +
                           int64_t{kGemvWarps<1>} * args.gemv.stages * kStageBytes;
    return launch_early(queue_, stream, "gemv_quantized_linear", kernel_,
                        std::clamp<int64_t>(args.gemv.matrix.panels, 1, queue_.num_sms),
                        kGemvThreads<1>, static_cast<size_t>(shared), args);
  }

  const KernelWeights& weights_;
  Kernel kernel_;
  int64_t most_shared_;  // bytes of a CTA
  const Queue& queue_;
};

}  // namespace

Status add_quantized_linear(GroupedLinear& linear, CudaDevice& device) {
  const Kernel kernel = kernel_for(linear.weights().shape, linear.weights().scheme);
  if (kernel == nullptr) return {};
  const Queue& queue = device.queue();
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
  int most_shared = 0;
  MORACLE_CUDA(
      cudaDeviceGetAttribute(&most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, queue.index));
  MORACLE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared));
  linear.add<QuantizedLinear>(kernel, most_shared, queue);
  return {};
}

}  // namespace moracle::cuda
