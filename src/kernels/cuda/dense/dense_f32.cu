#include "kernels/cuda/dense/dense_f32.h"

#include <type_traits>

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/cuda_f32_plan.h"
#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle::cuda {
namespace {

constexpr int kDenseThreads = 256, kDenseWarps = kDenseThreads / 32;

// kCount columns of a row of x in bf16, in pairs, or zeros past the end. kVectors: rows are 16-byte
// aligned, and have whole vectors of eight columns.
template <bool kVectors, int kCount>
__device__ void load_x(const uint16_t* row, int64_t column, int64_t k,
                       uint32_t (&pairs)[kCount / 2]) {
  if constexpr (kVectors) {
    static_assert(kCount == 4 || kCount == 8);
    using Vector = std::conditional_t<kCount == 8, uint4, uint2>;
    alignas(16) Vector vector{};
    if (column < k) vector = *reinterpret_cast<const Vector*>(row + column);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) pairs[i] = reinterpret_cast<const uint32_t*>(&vector)[i];
  } else {
    const auto at = [&](int i) -> uint32_t { return column + i < k ? row[column + i] : 0; };
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) pairs[i] = at(2 * i) | at(2 * i + 1) << 16;
  }
}

// Four bf16.
__device__ float4 four_floats(const uint32_t (&pairs)[2]) {
  return {__uint_as_float(pairs[0] << 16), __uint_as_float(pairs[0] & 0xffff0000u),
          __uint_as_float(pairs[1] << 16), __uint_as_float(pairs[1] & 0xffff0000u)};
}
// sum + w · x, in the order of the columns.
__device__ float add_products(const float4& w, const float4& x, float sum) {
  return fmaf(w.w, x.w, fmaf(w.z, x.z, fmaf(w.y, x.y, fmaf(w.x, x.x, sum))));
}

// Four columns of a weight row, or zeros past the end.
template <bool kVectors>
__device__ float4 four_of(const float* row, int64_t column, int64_t k) {
  if constexpr (kVectors) {
    if (column >= k) return {};
    return __ldcs(reinterpret_cast<const float4*>(row + column));
  } else {
    const auto at = [&](int i) { return column + i < k ? row[column + i] : 0.0f; };
    return {at(0), at(1), at(2), at(3)};
  }
}

__device__ const uint16_t* row_of(const DenseF32& a, int64_t row) {
  return static_cast<const uint16_t*>(a.x.data) + row * a.x.stride;
}

// A CTA computes one output of kRows rows. Few outputs then occupy every SM, and a thread has all
// of its weights in flight at once: 2,048 columns are two loads.
template <int kRows, bool kVectors>
__global__ void __launch_bounds__(kDenseThreads) gemv_f32(const DenseF32 a) {
  constexpr int kAhead = 2;
  __shared__ float partial[kDenseWarps][kRows];
  const int thread = static_cast<int>(threadIdx.x), rows = static_cast<int>(a.x.rows);
  const int64_t output = blockIdx.x;
  const float* const weights = a.weights + output * a.k;
  float sums[kRows] = {};
  for (int64_t first = 0; first < a.k; first += int64_t{kDenseThreads} * 4 * kAhead) {
    float4 w[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      w[i] = four_of<kVectors>(weights, first + (i * kDenseThreads + thread) * 4, a.k);
    if (first == 0) {
      pdl_wait();
      pdl_launch_dependents();
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= rows) break;
        uint32_t x[2];
        load_x<kVectors, 4>(row_of(a, r), first + (i * kDenseThreads + thread) * 4, a.k, x);
        sums[r] = add_products(w[i], four_floats(x), sums[r]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sums[r] += __shfl_xor_sync(kAllLanes, sums[r], step);
    if (thread % 32 == 0) partial[thread / 32][r] = sums[r];
  }
  __syncthreads();
  if (thread >= rows) return;
  float sum = a.bias != nullptr ? a.bias[output] : 0;
#pragma unroll
  for (int w = 0; w < kDenseWarps; ++w) sum += partial[w][thread];
  store(a.y, thread, output, sum);
}

constexpr int kTileRows = 64, kTileOutputs = 32;
constexpr int kStepColumns = 32;  // of a warp's step: a lane has eight of each row

// Two f32 as sums of three bf16 each: their first 8 bits, the next 8 and the last 8. Exact unless
// the last ones are below the smallest bf16.
__device__ void split_in_three(float2 two, uint32_t (&pairs)[3]) {
#pragma unroll
  for (uint32_t& pair : pairs) {
    const uint32_t x = __float_as_uint(two.x), y = __float_as_uint(two.y);
    pair = __byte_perm(x, y, 0x7632);
    two.x -= __uint_as_float(x & 0xffff0000u), two.y -= __uint_as_float(y & 0xffff0000u);
  }
}

// A CTA computes a tile on tensor cores. Its warps take steps of columns round-robin. The tensor
// core sums over columns in any order, so a lane has neighbouring columns of both operands.
template <bool kVectors>
__global__ void __launch_bounds__(kDenseThreads) gemm_f32(const DenseF32 a) {
  constexpr int kHalfWarps = kDenseWarps / 2, kPad = 4;  // padded against bank conflicts
  __shared__ float sums[kHalfWarps][kTileRows][kTileOutputs + kPad];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const int64_t tiles = (a.n + kTileOutputs - 1) / kTileOutputs;
  const int64_t output = blockIdx.x % tiles * kTileOutputs, row = blockIdx.x / tiles * kTileRows;
  pdl_wait();
  pdl_launch_dependents();
  float acc[kTileOutputs / 16][kTileRows / 8][4] = {};
  for (int64_t first = warp * kStepColumns; first < a.k; first += kStepColumns * kDenseWarps) {
    const int64_t column = first + 8 * t;
    uint32_t x[kTileRows / 8][4];
#pragma unroll
    for (int i = 0; i < kTileRows / 8; ++i) {
      const int64_t r = min(row + 8 * i + g, a.x.rows - 1);  // further rows are not stored
      load_x<kVectors, 8>(row_of(a, r), column, a.k, x[i]);
    }
#pragma unroll
    for (int m = 0; m < kTileOutputs / 16; ++m) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        uint32_t terms[3][4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int64_t n = output + 16 * m + 8 * h + g;
          const float4 w =
              n < a.n ? four_of<kVectors>(a.weights + n * a.k, column + 4 * s, a.k) : float4{};
          uint32_t low[3], high[3];
          split_in_three({w.x, w.y}, low);
          split_in_three({w.z, w.w}, high);
#pragma unroll
          for (int p = 0; p < 3; ++p) terms[p][h] = low[p], terms[p][2 + h] = high[p];
        }
#pragma unroll
        for (int p = 2; p >= 0; --p) {
#pragma unroll
          for (int i = 0; i < kTileRows / 8; ++i)
            mma_bf16(acc[m][i], terms[p], x[i][2 * s], x[i][2 * s + 1]);
        }
      }
    }
  }
  // Lanes have outputs g and g + 8 of rows 2 t and 2 t + 1. The second half of the warps leaves its
  // sums for the first, which leaves the sums of both.
  const auto each_sum = [&](auto use) {
    float(*const of_warp)[kTileOutputs + kPad] = sums[warp % kHalfWarps];
#pragma unroll
    for (int m = 0; m < kTileOutputs / 16; ++m) {
#pragma unroll
      for (int i = 0; i < kTileRows / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          use(of_warp[8 * i + 2 * t + j % 2][16 * m + 8 * (j / 2) + g], acc[m][i][j]);
      }
    }
  };
  if (warp >= kHalfWarps) each_sum([](float& at, float sum) { at = sum; });
  __syncthreads();
  if (warp < kHalfWarps) each_sum([](float& at, float sum) { at += sum; });
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kTileOutputs; i += kDenseThreads) {
    const int of_row = i / kTileOutputs, of_output = i % kTileOutputs;
    const int64_t r = row + of_row, n = output + of_output;
    if (r >= a.x.rows || n >= a.n) continue;
    float sum = a.bias != nullptr ? a.bias[n] : 0;
#pragma unroll
    for (int w = 0; w < kHalfWarps; ++w) sum += sums[w][of_row][of_output];
    store(a.y, r, n, sum);
  }
}

using DenseKernel = void (*)(DenseF32);
// By the logarithm of the rows. [vectors]
constexpr DenseKernel kGemvs[][2] = {{gemv_f32<1, false>, gemv_f32<1, true>},
                                     {gemv_f32<2, false>, gemv_f32<2, true>},
                                     {gemv_f32<4, false>, gemv_f32<4, true>},
                                     {gemv_f32<8, false>, gemv_f32<8, true>}};
static_assert(kDenseGemvF32Rows == 8);
constexpr DenseKernel kGemms[2] = {gemm_f32<false>, gemm_f32<true>};

bool in_vectors(const DenseF32& args) {
  return args.k % 8 == 0 && reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0 &&
         args.x.stride % 8 == 0;
}

}  // namespace

Status multiply_gemv_f32(const Queue& queue, const DenseF32& args, Stream stream) {
  if (args.x.rows == 0) return {};
  int choice = 0;
  while (int64_t{1} << choice < args.x.rows) ++choice;
  return launch_early(queue, stream, "gemv_f32", kGemvs[choice][in_vectors(args)], args.n,
                      kDenseThreads, 0, args);
}

Status multiply_gemm_f32(const Queue& queue, const DenseF32& args, Stream stream) {
  if (args.x.rows == 0) return {};
  const int64_t tiles =
      (args.n + kTileOutputs - 1) / kTileOutputs * ((args.x.rows + kTileRows - 1) / kTileRows);
  return launch_early(queue, stream, "gemm_f32", kGemms[in_vectors(args)], tiles, kDenseThreads, 0,
                      args);
}

Status load_dense_f32() {
  const auto load = [](DenseKernel kernel) {
    cudaFuncAttributes attributes{};
    return check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
                 "cudaFuncGetAttributes");
  };
  for (const auto& kernels : kGemvs) {
    for (const DenseKernel kernel : kernels) MORACLE_CHECK(load(kernel));
  }
  for (const DenseKernel kernel : kGemms) MORACLE_CHECK(load(kernel));
  return {};
}

}  // namespace moracle::cuda
