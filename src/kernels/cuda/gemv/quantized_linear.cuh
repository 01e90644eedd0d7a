// GEMV of a linear layer with 8-bit weights and activations, with a prologue that normalizes (if
// the layer starts with a norm) and quantizes. Each CTA loads the rows to shared memory, normalizes
// and quantizes them, and multiplies as gemv_linear does. Repeating the prologue in every CTA takes
// less time than kernels before this one.
#pragma once

#include "kernels/cuda/gemv/gemv_linear.cuh"
#include "kernels/cuda/ptx/arithmetic.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/quantize_values.cuh"

namespace moracle::cuda {

/// Most tokens of such a layer: each CTA normalizes and quantizes all of them.
inline constexpr int64_t kMostQuantizedTokens = 4;
/// Most columns of such a layer.
inline constexpr int64_t kMostQuantizedCols = 4096;
inline constexpr int kQuantizedClose = 4;  // as gemv_kernels has it
/// Columns that share a scale of the activations, where not all of a row do.
inline constexpr int kQuantizedGroup = 128;

struct QuantizedArgs {
  GemvArgs gemv;
  QuantKey key;
  Matrix x;    ///< without a norm: rows in bf16
  bool norms;  ///< gemv.normed describes x
};

struct alignas(16) QuantizedShared {
  RingBarriers<kGemvWarps<1>> barriers;
  NormSquares squares;
  float scales[kMostQuantizedTokens][kMostQuantizedCols / kQuantizedGroup];
  uint32_t largest[kGemvWarps<1>];
};

/// Bytes from one row of codes to the next. Neighbouring rows lie in different banks.
__host__ __device__ inline int quantized_stride(int64_t cols) {
  return static_cast<int>(cols) + 32;
}
/// Shared memory of the rows in bf16, and of their codes.
inline int64_t quantized_bytes(int64_t rows, int64_t cols) {
  return normed_bytes(rows, cols) + rows * quantized_stride(cols);
}

/// Quantizes rows in shared memory, with one scale for each kQuantizedGroup columns. 16 lanes have
/// a group.
__device__ inline void quantize_groups_in_block(const QuantKey& key, const Eight* rows, int stride,
                                                int count, int cols, uint8_t* codes,
                                                int code_stride, float* scales) {
  constexpr int kLanes = kQuantizedGroup / 8;
  const int groups = cols / kQuantizedGroup, lane = static_cast<int>(threadIdx.x) % kLanes;
  const int all = count * groups, step = kGemvThreads<1> / kLanes;
  for (int i = static_cast<int>(threadIdx.x) / kLanes; i < (all + 1) / 2 * 2; i += step) {
    const bool there = i < all;  // both halves of a warp shuffle
    const int row = there ? i / groups : 0, group = there ? i % groups : 0;
    const int at = group * kLanes + lane;
    const EightValues eight(reinterpret_cast<const uint16_t*>(rows + row * stride + at));
    uint32_t largest = eight.largest();
    for (int s = kLanes / 2; s > 0; s /= 2)
      largest = max(largest, __shfl_xor_sync(kAllLanes, largest, s));
    if (!there) continue;
    const float scale = scale_of_bits(key, largest);
    *reinterpret_cast<uint2*>(codes + row * code_stride + at * 8) =
        eight.codes(key, scale, largest < kInfinityBits);
    if (lane == 0) scales[row * groups + group] = scale;
  }
  __syncthreads();
}

/// Quantizes rows in shared memory, with one scale for each row. Three warps have a row.
__device__ inline void quantize_rows_in_block(const QuantKey& key, const Eight* rows, int stride,
                                              int count, int cols, uint8_t* codes, int code_stride,
                                              float* scales, uint32_t (&of_warp)[kGemvWarps<1>]) {
  constexpr int kTeam = 3, kTeamThreads = 32 * kTeam;
  static_assert(kGemvWarps<1> / kTeam >= kMostQuantizedTokens);
  const int row = static_cast<int>(threadIdx.x) / kTeamThreads,
            thread = static_cast<int>(threadIdx.x) % kTeamThreads, vectors = cols / 8;
  const auto values = [&](int at) {
    return EightValues(reinterpret_cast<const uint16_t*>(rows + row * stride + at));
  };
  uint32_t largest = 0;
  if (row < count) {
    for (int at = thread; at < vectors; at += kTeamThreads)
      largest = max(largest, values(at).largest());
  }
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
  if (row < count) {
    for (int i = 0; i < kTeam; ++i) largest = max(largest, of_warp[row * kTeam + i]);
    const float scale = scale_of_bits(key, largest);
    for (int at = thread; at < vectors; at += kTeamThreads)
      *reinterpret_cast<uint2*>(codes + row * code_stride + at * 8) =
          values(at).codes(key, scale, largest < kInfinityBits);
    if (thread == 0) scales[row] = scale;
  }
  __syncthreads();
}

template <class Operand>
__global__ void __maxnreg__(kLinearRegisters)
    gemv_quantized_linear(const __grid_constant__ QuantizedArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint8_t memory[];
  auto& shared = *reinterpret_cast<QuantizedShared*>(memory);
  const AddRmsNorm& norm = args.gemv.normed.norm;
  const auto count = static_cast<int>(args.x.rows), cols = static_cast<int>(args.x.cols);
  const int stride = normed_stride(cols), code_stride = quantized_stride(cols);
  uint8_t* const rings = memory + sizeof(shared);
  auto* const rows = reinterpret_cast<Eight*>(behind_linear_sums(args.gemv, rings));
  auto* const codes = reinterpret_cast<uint8_t*>(rows + count * stride);

  GemvArgs gemv = args.gemv;
  gemv.matrix.x_scales = &shared.scales[0][0];
  run_gemv_linear<Operand, kQuantizedClose>(
      gemv, shared.barriers, rings, {codes, code_stride}, [&] {
        if (args.norms) {
          NormInBlock<kGemvThreads<1>, kNormedVectors> norm_in_block(norm);
          pdl_wait();
          pdl_launch_dependents();
          // CTAs alternate in storing vectors of the sum.
          const unsigned block = blockIdx.x;
          norm_in_block.run(norm, rows, stride, shared.squares,
                            [&](int r, int at, const Eight& sum) {
                              if ((r + at) % gridDim.x == block)
                                eights(args.gemv.normed.sum, r)[at] = sum;
                            });
        } else {
          pdl_wait();
          pdl_launch_dependents();
          const int vectors = cols / 8;
#pragma unroll 4
          for (int i = static_cast<int>(threadIdx.x); i < count * vectors; i += kGemvThreads<1>)
            rows[i / vectors * stride + i % vectors] = eights(args.x, i / vectors)[i % vectors];
          __syncthreads();
        }
        if constexpr (Operand::kXScales == XScales::kGroup)
          quantize_groups_in_block(args.key, rows, stride, count, cols, codes, code_stride,
                                   &shared.scales[0][0]);
        else
          quantize_rows_in_block(args.key, rows, stride, count, cols, codes, code_stride,
                                 &shared.scales[0][0], shared.largest);
      });
#endif
}

}  // namespace moracle::cuda
