#include "kernels/cuda/gemm_skinny/skinny_launch.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/operands/scaling_plan.h"
#include "kernels/kernel_watch.h"

namespace moracle::cuda {
namespace {

SkinnyKernels skinny_kernels_for(const MatrixShape& shape, const Scheme& scheme) {
  const bool in_groups = scales_in_groups(shape, scheme);
  if (scheme.activation) {
    if (shape.key.dtype == DType::kI8) return skinny_int8_int8();
    if (shape.key.dtype == DType::kI4) return skinny_int4_fp8();
    return in_groups ? skinny_fp8_fp8_groups() : skinny_fp8_fp8();
  }
  if (shape.key.dtype == DType::kI4) return skinny_int4();
  if (shape.key.dtype == DType::kI8) return in_groups ? skinny_int8_groups() : skinny_int8();
  return in_groups ? skinny_fp8_groups() : skinny_fp8();
}

// Index of the kernel for as many tokens.
int kernel_index(int64_t tokens) {
  return skinny_octets(tokens) == 4 ? 0 : 1;
}

}  // namespace

Result<SkinnyLaunch> SkinnyLaunch::make(const KernelWeights& weights, const Queue& queue) {
  SkinnyLaunch launch;
  launch.kernels_ = skinny_kernels_for(weights.shape, weights.scheme);
  launch.queue_ = &queue;
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
  for (int i = 0; i < 2; ++i) {
    launch.splits_[i] = skinny_split(weights.shape, weights.scheme, 4 << i, queue.num_sms);
    // Layers with larger and smaller matrices share the kernel.
    MORACLE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(launch.kernels_.by_tokens[i]),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      kMostSkinnyBytes));
  }
  return launch;
}

Status SkinnyLaunch::run(const KernelWeights& weights, const Rows& x, const Matrix& y,
                         Stream stream) const {
  const int64_t tokens = x.values.rows;
  if (kernels_are_watched()) report({name(skinny_form(weights.scheme, tokens)), weights.shape});
  const int index = kernel_index(tokens);
  const SkinnySplit& split = splits_[index];
  const SkinnyArgs args{gemm_args(weights, {x, nullptr, nullptr, tokens}, y), split};
  const int64_t tiles = (args.matrix.panels + split.tile_panels - 1) / split.tile_panels;
  return launch_clusters(*queue_, stream, "skinny", kernels_.by_tokens[index],
                         tiles * split.cluster, split.cluster, 32 * split.tile_panels,
                         static_cast<size_t>(split.bytes), args);
}

}  // namespace moracle::cuda
