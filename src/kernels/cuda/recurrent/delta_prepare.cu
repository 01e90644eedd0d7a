// The part of the chunked gated delta rule that does not depend on the state. A block takes a chunk
// of one key head: products of its keys and queries on tensor cores, then for each of its value
// heads the inverse of a triangular matrix, in f32.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/recurrent/delta_chunk.cuh"

namespace moracle::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kEights = kHeadDim / 8, kRowFloats = kChunk + 4;

struct Keys {
  Swizzled<kChunk, kEights> k, q;
};
// Lower-triangular matrices. Rows are padded to keep whole vectors in different banks.
struct Triangles {
  float a[kChunk][kRowFloats], inverse[kChunk][kRowFloats];
};
struct PrepareShared {
  union {
    Keys keys;
    Triangles triangles;
  };
  float lengths[2][kChunk];  // 1 / |k|, 1 / |q|
  float sums[kChunk], strength[kChunk];
};

// Sums of the products of rows of a and b, in the accumulators of a warp: rows 16 w to 16 w + 15,
// up to the diagonal.
using Products = float[kChunk / 8][4];
__device__ void multiply(Swizzled<kChunk, kEights>& a, Swizzled<kChunk, kEights>& b,
                         Products& products) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < kHeadDim / 32; ++i) {
    uint32_t rows[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      ldmatrix_x4(rows[half], a.at(16 * warp + lane % 16, 4 * i + 2 * half + lane / 16));
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      if (n > 2 * warp + 1) continue;
      uint32_t columns[4];
      ldmatrix_x4(columns, b.at(8 * n + lane % 8, 4 * i + lane / 8));
      mma_bf16(products[n], rows[0], columns[0], columns[1]);
      mma_bf16(products[n], rows[1], columns[2], columns[3]);
    }
  }
}

// Sets sums[i] to the sum of the logarithms of the decays up to token i.
__device__ void add_decays(const DeltaArgs& a, int64_t first, int count, int64_t head,
                           PrepareShared& shared) {
  const int i = threadIdx.x, lane = i % 32;
  DeltaGates gates{0, 0};
  if (i < count)
    gates = a.gates(head, load(a.ba, first + i, a.a_at(head)), load(a.ba, first + i, a.b_at(head)));
  if (i < kChunk) {
    for (int step = 1; step < 32; step *= 2) {
      const float before = __shfl_up_sync(kAllLanes, gates.log_decay, step);
      if (lane >= step) gates.log_decay += before;
    }
    shared.sums[i] = gates.log_decay;
    shared.strength[i] = gates.strength;
  }
  __syncthreads();
  if (i >= 32 && i < kChunk) shared.sums[i] += shared.sums[31];
  __syncthreads();
}

// Inverts 1 + a: blocks of 16 on the diagonal by substitution, one column per thread. The other
// threads clear the blocks to the right of the first and the third.
__device__ void invert_diagonal(Triangles& triangles) {
  const int c = threadIdx.x % 16, first = threadIdx.x / 16 * 16;
  if (first >= kChunk) {
    const int row = c + (first - kChunk) / 32 * 32, column = first < kChunk + 32 ? 16 : 48;
    float* const to = &triangles.inverse[row][column + first % 32 / 2];
    reinterpret_cast<float4*>(to)[0] = reinterpret_cast<float4*>(to)[1] = float4{};
    return;
  }
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float sum = i == c ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < i; ++j) sum -= triangles.a[first + i][first + j] * x[j];
    x[i] = sum;
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) triangles.inverse[first + i][first + c] = x[i];
}

// to = factor · left · right, matrices of kSize rows and columns. A thread computes four columns of
// every 16th row.
template <int kSize>
__device__ void multiply_squares(float (*left)[kRowFloats], int left_at, float (*right)[kRowFloats],
                                 int right_at, float factor, float (*to)[kRowFloats], int to_at,
                                 int thread) {
  constexpr int kLanes = kSize / 4, kRowsAtOnce = 16, kRows = kSize / kRowsAtOnce;
  const int row = thread / kLanes, column = thread % kLanes * 4;
  float4 sums[kRows] = {};
#pragma unroll 2
  for (int first = 0; first < kSize; first += 4) {
    float4 x[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      x[r] = *reinterpret_cast<const float4*>(&left[row + r * kRowsAtOnce][left_at + first]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float4 y = *reinterpret_cast<const float4*>(&right[first + k][right_at + column]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float one = (&x[r].x)[k];
        sums[r].x += one * y.x, sums[r].y += one * y.y;
        sums[r].z += one * y.z, sums[r].w += one * y.w;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    *reinterpret_cast<float4*>(&to[row + r * kRowsAtOnce][to_at + column]) = {
        factor * sums[r].x, factor * sums[r].y, factor * sums[r].z, factor * sums[r].w};
}

// The block below the diagonal of the inverse of [[P, 0], [A, Q]] is -Q⁻¹ A P⁻¹. The unused block
// above the diagonal of `a` holds A P⁻¹.
template <int kSize>
__device__ void merge(Triangles& triangles, int first, int thread) {
  float(*const a)[kRowFloats] = triangles.a + first;
  float(*const inverse)[kRowFloats] = triangles.inverse + first;
  multiply_squares<kSize>(a + kSize, first, inverse, first, 1, a, first + kSize, thread);
  __syncthreads();
  multiply_squares<kSize>(inverse + kSize, first + kSize, a, first + kSize, -1, inverse + kSize,
                          first, thread);
  __syncthreads();
}

__device__ void invert(Triangles& triangles) {
  const int thread = threadIdx.x;
  invert_diagonal(triangles);
  __syncthreads();
  merge<16>(triangles, thread / 64 * 32, thread % 64);
  merge<32>(triangles, 0, thread);
}

// Writes the inverse with its columns times the strengths, as bf16.
__device__ void store_change(const PrepareShared& shared, DeltaTile& tile) {
  constexpr int kHalf = kChunk * kChunk / kThreads;  // numbers of a thread: half a row
  const int row = threadIdx.x / 2, first = threadIdx.x % 2 * kHalf;
#pragma unroll
  for (int e = 0; e < kHalf / 8; ++e) {
    uint32_t pairs[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const int j = first + 8 * e + 2 * p;
      const float* const from = &shared.triangles.inverse[row][j];
      pairs[p] = to_bf16_pair(j <= row ? from[0] * shared.strength[j] : 0,
                              j < row ? from[1] * shared.strength[j + 1] : 0);
    }
    reinterpret_cast<uint4*>(tile.change + row * kChunk + first)[e] = {pairs[0], pairs[1], pairs[2],
                                                                       pairs[3]};
  }
}

__global__ void __launch_bounds__(kThreads, 4) delta_prepare(const DeltaArgs a, DeltaTiles tiles) {
  pdl_wait();
  pdl_launch_dependents();
  extern __shared__ uint4 delta_shared[];
  auto& shared = *reinterpret_cast<PrepareShared*>(delta_shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t key_heads = a.shape.num_key_heads, per_key = a.shape.num_value_heads / key_heads;
  for (int64_t b = blockIdx.x; b < tiles.count * key_heads; b += gridDim.x) {
    const int64_t chunk = tiles.first + b / key_heads, key = b % key_heads;
    const int64_t sequence = sequence_of_chunk(a.batch, chunk);
    const int64_t begin = a.batch.first_token[sequence], end = a.batch.first_token[sequence + 1];
    const int64_t first = begin + (chunk - first_chunk_of(a.batch, sequence)) * kChunk;
    if (first >= end || end - begin <= a.recurrent_tokens) continue;
    const auto count = static_cast<int>(min(end - first, int64_t{kChunk}));
    __syncthreads();  // wait until the previous iteration's inverse has been read
    const auto fetch = [&](Swizzled<kChunk, kEights>& to, int64_t column) {
      const auto* const from = static_cast<const uint16_t*>(a.qkv.data) + column;
#pragma unroll
      for (int i = 0; i < kChunk * kEights / kThreads; ++i) {
        const int at = threadIdx.x + i * kThreads, row = at / kEights, eight = at % kEights;
        cp_async_16(to.at(row, eight), from + min(first + row, end - 1) * a.qkv.stride + 8 * eight,
                    row < count);
      }
    };
    fetch(shared.keys.k, (key_heads + key) * kHeadDim);
    fetch(shared.keys.q, key * kHeadDim);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    {
      const int which = threadIdx.x / kChunk, row = threadIdx.x % kChunk;
      Swizzled<kChunk, kEights>& from = which == 0 ? shared.keys.k : shared.keys.q;
      float squares = 0;
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const uint4 eight = *from.at(row, e);
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          const uint32_t pair = (&eight.x)[p];
          const float low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000u);
          squares += low * low + high * high;
        }
      }
      shared.lengths[which][row] = 1.0f / sqrtf(squares + kDeltaEpsilon);
    }
    Products keys = {}, scores = {};
    multiply(shared.keys.k, shared.keys.k, keys);
    multiply(shared.keys.q, shared.keys.k, scores);
    const float scale = 1.0f / sqrtf(static_cast<float>(kHeadDim));
    for (int64_t v = 0; v < per_key; ++v) {
      const int64_t head = key * per_key + v;
      DeltaTile& tile = tiles.tiles[(chunk - tiles.first) * a.shape.num_value_heads + head];
      __syncthreads();  // wait until the keys or the previous inverse have been read
      add_decays(a, first, count, head, shared);
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = 16 * warp + lane / 4 + 8 * half, j = 8 * n + lane % 4 * 2;
          float found[2] = {}, seen[2] = {};
          // Whole blocks of 8 columns above the diagonal stay zero.
          if (n <= 2 * warp + 1) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              const float decay =
                  expf(fminf(shared.sums[i] - shared.sums[j + c], 0)) * shared.lengths[0][j + c];
              const float key =
                  keys[n][2 * half + c] * decay * shared.lengths[0][i] * shared.strength[i];
              const float score = scores[n][2 * half + c] * decay * shared.lengths[1][i] * scale;
              found[c] = j + c < i ? key : 0.0f;
              seen[c] = j + c <= i ? score : 0.0f;
            }
          }
          *reinterpret_cast<float2*>(&shared.triangles.a[i][j]) = {found[0], found[1]};
          reinterpret_cast<uint32_t*>(tile.scores)[(i * kChunk + j) / 2] =
              to_bf16_pair(seen[0], seen[1]);
        }
      }
      if (threadIdx.x < kChunk) {
        const int i = threadIdx.x;
        const float sum = shared.sums[i], last = shared.sums[kChunk - 1];
        tile.known[i] = expf(sum) * shared.lengths[0][i];
        tile.kept[i] = expf(last - sum) * shared.lengths[0][i];
        tile.asked[i] = expf(sum) * shared.lengths[1][i] * scale;
        if (i < 16) tile.last[i] = expf(last);
      }
      __syncthreads();
      invert(shared.triangles);
      store_change(shared, tile);
    }
  }
}

}  // namespace

Status prepare_chunks(const DeltaArgs& args, const DeltaTiles& tiles, const Queue& queue,
                      Stream stream) {
  return launch_early(queue, stream, "delta_prepare", delta_prepare,
                      tiles.count * args.shape.num_key_heads, kThreads, sizeof(PrepareShared), args,
                      tiles);
}

}  // namespace moracle::cuda
