#include "kernels/cuda/gemm_sm90/row_factors.h"

#include "kernels/cuda/device/launch.cuh"
#include "layout/mma16.h"

namespace moracle::cuda {
namespace {

constexpr int kFactorThreads = 256, kFactorParts = kFactorThreads / mma16::kRows;
constexpr int kLeastA = 8, kMostA = 15;
constexpr float kLeastFactor = 0x1p-60f;  // kernels divide 2^60 by it

struct FactorArgs {
  uint8_t* base;
  int64_t expert_bytes, scales_at, factors_at;
  int panels, groups;  // of an expert, a row

  __device__ uint8_t* expert(int64_t panel) const { return base + panel / panels * expert_bytes; }
  /// [group][row of the panel]
  __device__ const float* scales(int64_t panel) const {
    return reinterpret_cast<const float*>(expert(panel) + scales_at) +
           panel % panels * groups * mma16::kRows;
  }
  __device__ float* factors(int64_t panel) const {
    return reinterpret_cast<float*>(expert(panel) + factors_at) + panel % panels * mma16::kRows;
  }
};

__device__ float factor_of(float largest, int a) {
  return largest * (static_cast<float>(kLeastA) / static_cast<float>(a));
}

// True if a number has six significant bits, but for the rounding of a product and a quotient.
__device__ bool has_few_bits(float x) {
  constexpr uint32_t kDropped = (1u << 18) - 1;
  const float near = __uint_as_float((__float_as_uint(x) + (kDropped + 1) / 2) & ~kDropped);
  return fabsf(x - near) <= x * 0x1p-20f;
}

__global__ void __launch_bounds__(kFactorThreads) find_factors(const FactorArgs a, int64_t count) {
  __shared__ unsigned largest[mma16::kRows];  // bits of the scale
  __shared__ unsigned wrong[mma16::kRows];    // a bit for each integer a
  const int thread = static_cast<int>(threadIdx.x), row = thread % mma16::kRows;
  for (int64_t panel = blockIdx.x; panel < count; panel += gridDim.x) {
    const float* const scales = a.scales(panel);
    if (thread < mma16::kRows) largest[thread] = wrong[thread] = 0;
    __syncthreads();
    for (int g = thread / mma16::kRows; g < a.groups; g += kFactorParts) {
      const float scale = fabsf(scales[g * mma16::kRows + row]);
      if (isfinite(scale)) atomicMax(&largest[row], __float_as_uint(scale));
    }
    __syncthreads();
    const float most = __uint_as_float(largest[row]);
    unsigned own = 0;
    for (int g = thread / mma16::kRows; g < a.groups; g += kFactorParts) {
      const float scale = fabsf(scales[g * mma16::kRows + row]);
      if (!isfinite(scale) || scale == 0) continue;
      for (int n = kLeastA; n <= kMostA; ++n)
        if (!has_few_bits(scale / factor_of(most, n))) own |= 1u << (n - kLeastA);
    }
    if (own != 0) atomicOr(&wrong[row], own);
    __syncthreads();
    if (thread < mma16::kRows) {
      int n = kLeastA;
      while (n < kMostA && (wrong[row] >> (n - kLeastA) & 1) != 0) ++n;
      if ((wrong[row] >> (n - kLeastA) & 1) != 0) n = kLeastA;
      a.factors(panel)[row] = most > 0 ? fmaxf(factor_of(most, n), kLeastFactor) : 1.0f;
    }
    __syncthreads();
  }
}

}  // namespace

Status find_row_factors(const KernelWeights& weights, const Queue& queue, Stream stream) {
  const FactorArgs args{weights.buffer.as<uint8_t>(),
                        static_cast<int64_t>(weights.sections.bytes),
                        static_cast<int64_t>(weights.sections.scales),
                        static_cast<int64_t>(weights.sections.row_factors),
                        static_cast<int>(mma16::num_panels(weights.shape.n)),
                        static_cast<int>(mma16::num_groups(weights.shape))};
  const int64_t panels = args.panels * weights.num_experts;
  return launch(queue, stream, "find_factors", find_factors, panels, kFactorThreads, 0, args,
                panels);
}

}  // namespace moracle::cuda
