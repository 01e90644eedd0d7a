#include "kernels/cuda/dense/dense_f32.h"

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/cuda_f32_plan.h"
#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle::cuda {
namespace {

constexpr int kDenseThreads = 256, kDenseWarps = kDenseThreads / 32;

// kVectors: rows are 16-byte aligned, and have whole vectors of eight columns.
struct RowOfX {
  const uint16_t* x;
  template <bool kVectors, int kCount>
  __device__ void get(int64_t column, int64_t k, float (&to)[kCount]) const {
    static_assert(kCount % 4 == 0);
    if constexpr (kVectors) {
      alignas(16) uint2 words[kCount / 4] = {};
      if (column < k) {
        if constexpr (kCount == 8)
          *reinterpret_cast<uint4*>(words) = *reinterpret_cast<const uint4*>(x + column);
        else
          words[0] = *reinterpret_cast<const uint2*>(x + column);
      }
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const uint2 four = words[i / 4];
        to[i] = __uint_as_float(four.x << 16), to[i + 1] = __uint_as_float(four.x & 0xffff0000u);
        to[i + 2] = __uint_as_float(four.y << 16),
               to[i + 3] = __uint_as_float(four.y & 0xffff0000u);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) to[i] = column + i < k ? bf16_to_float(x[column + i]) : 0.0f;
    }
  }
};

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
        float x[4];
        RowOfX{row_of(a, r)}.get<kVectors>(first + (i * kDenseThreads + thread) * 4, a.k, x);
        sums[r] += w[i].x * x[0] + w[i].y * x[1] + w[i].z * x[2] + w[i].w * x[3];
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

constexpr int kTileRows = 16, kTileOutputs = 32,
              kChunkColumns = 16;  // a chunk: columns of a warp's step

// A chunk of a warp, transposed: a lane multiplies four rows by four outputs, and reads four
// numbers at once. Rows are padded against bank conflicts.
struct Chunk {
  alignas(16) float w[kChunkColumns][kTileOutputs + 4];
  alignas(16) float x[kChunkColumns][kTileRows + 4];
};
union TileMemory {
  Chunk chunks[kDenseWarps];
  float sums[kDenseWarps][kTileRows][kTileOutputs];
};

// A lane's share of a chunk, on its way from memory.
struct ChunkRegisters {
  float4 w[4];  // of outputs lane / 4 + 8 i, columns 4 (lane % 4) to 4 (lane % 4) + 3
  float x[8];   // of row lane / 2, columns 8 (lane % 2) to 8 (lane % 2) + 7
};

// A CTA computes a tile. Its warps take chunks of columns round-robin, each on its own.
template <bool kVectors>
__global__ void __launch_bounds__(kDenseThreads) gemm_f32(const DenseF32 a) {
  __shared__ TileMemory memory;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t tiles = (a.n + kTileOutputs - 1) / kTileOutputs;
  const int64_t output = blockIdx.x % tiles * kTileOutputs, row = blockIdx.x / tiles * kTileRows;
  pdl_wait();
  pdl_launch_dependents();
  const auto load_chunk = [&](int64_t first, ChunkRegisters& to) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t n = output + lane / 4 + 8 * i;
      to.w[i] =
          n < a.n ? four_of<kVectors>(a.weights + n * a.k, first + lane % 4 * 4, a.k) : float4{};
    }
    const int64_t r = min(row + lane / 2, a.x.rows - 1);  // further rows are not stored
    RowOfX{row_of(a, r)}.get<kVectors>(first + lane % 2 * 8, a.k, to.x);
  };
  Chunk& chunk = memory.chunks[warp];
  const int own_row = lane / 8 * 4, own_output = lane % 8 * 4;
  float sums[4][4] = {};
  ChunkRegisters next;
  constexpr int kStep = kChunkColumns * kDenseWarps;
  load_chunk(warp * kChunkColumns, next);
  for (int64_t first = warp * kChunkColumns; first < a.k; first += kStep) {
    __syncwarp();  // the previous chunk has been read
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float w[4] = {next.w[i].x, next.w[i].y, next.w[i].z, next.w[i].w};
#pragma unroll
      for (int c = 0; c < 4; ++c) chunk.w[lane % 4 * 4 + c][lane / 4 + 8 * i] = w[c];
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) chunk.x[lane % 2 * 8 + c][lane / 2] = next.x[c];
    __syncwarp();
    load_chunk(first + kStep, next);  // zeros past the end
#pragma unroll
    for (int c = 0; c < kChunkColumns; ++c) {
      const float4 w = *reinterpret_cast<const float4*>(&chunk.w[c][own_output]);
      const float4 x = *reinterpret_cast<const float4*>(&chunk.x[c][own_row]);
      const float of_w[4] = {w.x, w.y, w.z, w.w}, of_x[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] += of_x[i] * of_w[j];
      }
    }
  }
  __syncthreads();  // wait until all chunks have been read
#pragma unroll
  for (int i = 0; i < 4; ++i)
    *reinterpret_cast<float4*>(&memory.sums[warp][own_row + i][own_output]) = {
        sums[i][0], sums[i][1], sums[i][2], sums[i][3]};
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kTileOutputs; i += kDenseThreads) {
    const int64_t r = row + i / kTileOutputs, n = output + i % kTileOutputs;
    if (r >= a.x.rows || n >= a.n) continue;
    float sum = a.bias != nullptr ? a.bias[n] : 0;
#pragma unroll
    for (int w = 0; w < kDenseWarps; ++w) sum += memory.sums[w][i / kTileOutputs][i % kTileOutputs];
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
