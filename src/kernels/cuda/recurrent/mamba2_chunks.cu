// Mamba-2 in chunks of 64 tokens. G_i is the sum of the logarithms of the decays up to token i of
// the chunk, S the state before the chunk, Δ the step size:
//   out_i = exp(G_i) Sᵀ c_i + Σ_j≤i exp(G_i - G_j) Δ_j (c_i · b_j) x_j + d x_i
//   S ← exp(G_last) S + Σ_j b_j ⊗ exp(G_last - G_j) Δ_j x_j
// All exponents are at most 0. A block goes through the chunks of a sequence with one head. Each of
// its warps keeps the state of 16 columns of x in accumulators, transposed; columns do not depend
// on each other. Together the warps compute the products of b and c. The next chunk is fetched
// meanwhile.
#include <algorithm>

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/recurrent/chunk_products.cuh"
#include "kernels/cuda/recurrent/mamba2.cuh"

namespace moracle::cuda {
namespace {

constexpr int kStates = 128, kHeadColumns = 64;  // sizes of a head
constexpr int kWarps = kHeadColumns / 16, kThreads = 32 * kWarps;
constexpr int kStateTiles = kStates / 8;

struct MambaInputs {
  Swizzled<kChunk, kStates / 8> b, c;
  Swizzled<kChunk, kHeadColumns / 8> x;
};
struct MambaChunkShared {
  MambaInputs inputs[2];
  Swizzled<kChunk, kChunk / 8> scores;
  float sums[kChunk], step[kChunk];  // G_i, Δ_i
  float known[kChunk];               // exp(G_i)
  float kept[kChunk];                // exp(G_last - G_i) Δ_i
};

// Copies rows of bf16, zeros after `count` rows. `from` is the first; rows past `count` are not
// read.
template <int kEights>
__device__ void fetch_rows(Swizzled<kChunk, kEights>& to, const uint16_t* from, int64_t stride,
                           int count) {
#pragma unroll
  for (int i = 0; i < kChunk * kEights / kThreads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads, row = at / kEights,
              eight = at % kEights;
    cp_async_16(to.at(row, eight), from + (row < count ? row * stride : 0) + 8 * eight,
                row < count);
  }
}

// Gates of the chunk's tokens. Tokens past `count` keep the state.
__device__ void add_decays(const Mamba2Args& a, int64_t first, int count, int64_t head,
                           MambaChunkShared& shared) {
  const int i = threadIdx.x, lane = i % 32;
  Mamba2Gates gates{0, 0};
  if (i < count) gates = a.gates(head, load(a.dt, first + i, head));
  if (i < kChunk) {
    for (int step = 1; step < 32; step *= 2) {
      const float before = __shfl_up_sync(kAllLanes, gates.log_decay, step);
      if (lane >= step) gates.log_decay += before;
    }
    shared.sums[i] = gates.log_decay;
    shared.step[i] = gates.step;
  }
  __syncthreads();
  if (i >= 32 && i < kChunk) shared.sums[i] += shared.sums[31];
  __syncthreads();
  if (i < kChunk) {
    const float sum = shared.sums[i];
    shared.known[i] = expf(sum);
    shared.kept[i] = expf(shared.sums[kChunk - 1] - sum) * shared.step[i];
  }
}

// Rows 16 w to 16 w + 15 of exp(G_i - G_j) Δ_j (c_i · b_j), of warp w, as bf16. Zeros above the
// diagonal.
__device__ void multiply_inputs(MambaInputs& in, MambaChunkShared& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float products[kTokenTiles][4] = {};
#pragma unroll
  for (int i = 0; i < kStates / 32; ++i) {
    uint32_t rows[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      ldmatrix_x4(rows[half], in.c.at(16 * warp + lane % 16, 4 * i + 2 * half + lane / 16));
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      if (n > 2 * warp + 1) continue;
      uint32_t columns[4];
      ldmatrix_x4(columns, in.b.at(8 * n + lane % 8, 4 * i + lane / 8));
      mma_bf16(products[n], rows[0], columns[0], columns[1]);
      mma_bf16(products[n], rows[1], columns[2], columns[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 16 * warp + lane / 4 + 8 * half, j = 8 * n + lane % 4 * 2;
      float scores[2] = {};
      if (n <= 2 * warp + 1) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float decay = expf(fminf(shared.sums[i] - shared.sums[j + c], 0));
          const float score = products[n][2 * half + c] * decay * shared.step[j + c];
          scores[c] = j + c <= i ? score : 0.0f;
        }
      }
      reinterpret_cast<uint32_t*>(shared.scores.at(i, n))[lane % 4] =
          to_bf16_pair(scores[0], scores[1]);
    }
  }
}

// The state of a warp: 16 columns of x, transposed.
struct MambaColumns {
  Sums<kStateTiles> sums;

  // `columns`: the warp's first column of the head's matrix; null: zeros.
  __device__ void load(const float* columns) {
    each([&](int row, int column, float& x) {
      x = columns != nullptr ? columns[row * kHeadColumns + column] : 0.0f;
    });
  }
  __device__ void store(float* columns) {
    each([&](int row, int column, float& x) { columns[row * kHeadColumns + column] = x; });
  }

  // Outputs of the chunk's tokens, transposed. `x`: the warp's columns as left operands.
  __device__ void output(MambaInputs& in, MambaChunkShared& shared,
                         const uint32_t (&x)[kTokenTiles / 2][4], float skip,
                         Sums<kTokenTiles>& out) const {
    {
      uint32_t state[kStateTiles / 2][4];
      to_operands(sums, state);
      multiply_rows<false, kStateTiles / 4>(out, state, in.c);
    }
    scale_columns(out, shared.known);
    multiply_rows<true, kTokenTiles / 4>(out, x, shared.scores);
#pragma unroll
    for (int i = 0; i < kTokenTiles / 2; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float(&to)[4] = out[2 * i + c / 2];
        to[c % 2 * 2] = fmaf(skip, bf16_low(x[i][c]), to[c % 2 * 2]);
        to[c % 2 * 2 + 1] = fmaf(skip, bf16_high(x[i][c]), to[c % 2 * 2 + 1]);
      }
    }
  }

  __device__ void advance(MambaInputs& in, MambaChunkShared& shared,
                          const uint32_t (&x)[kTokenTiles / 2][4]) {
    const int lane = threadIdx.x % 32;
    const float last = shared.known[kChunk - 1];
#pragma unroll
    for (int n = 0; n < kStateTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[n][c] *= last;
    }
#pragma unroll
    for (int i = 0; i < kTokenTiles / 2; ++i) {
      uint32_t changes[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float2 kept =
            *reinterpret_cast<const float2*>(shared.kept + 16 * i + c / 2 * 8 + lane % 4 * 2);
        changes[c] = to_bf16_pair(bf16_low(x[i][c]) * kept.x, bf16_high(x[i][c]) * kept.y);
      }
#pragma unroll
      for (int n = 0; n < kStateTiles; n += 2) {
        uint32_t pairs[4];
        ldmatrix_x4<true>(pairs, in.b.at(16 * i + lane / 8 % 2 * 8 + lane % 8, n + lane / 16));
        mma_bf16(sums[n], changes, pairs[0], pairs[1]);
        mma_bf16(sums[n + 1], changes, pairs[2], pairs[3]);
      }
    }
  }

 private:
  template <class Each>
  __device__ void each(const Each& each_one) {
    const int g = threadIdx.x % 32 / 4, k = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < kStateTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) each_one(8 * n + 2 * k + c % 2, g + c / 2 * 8, sums[n][c]);
    }
  }
};

__global__ void __launch_bounds__(kThreads, 2) mamba2_chunks(const Mamba2Args a) {
  pdl_wait();
  pdl_launch_dependents();
  extern __shared__ uint4 mamba_shared[];
  auto& shared = *reinterpret_cast<MambaChunkShared*>(mamba_shared);
  const int lane = threadIdx.x % 32, columns = threadIdx.x / 32 * 16;
  const int64_t heads = a.shape.num_heads;
  for (int64_t g = blockIdx.x; g < a.batch.num_sequences * heads; g += gridDim.x) {
    const int64_t sequence = g / heads, head = g % heads;
    const int64_t begin = a.batch.first_token[sequence], end = a.batch.first_token[sequence + 1];
    if (end - begin <= a.recurrent_tokens) continue;
    const auto chunks = static_cast<int>((end - begin + kChunk - 1) / kChunk);
    const auto count_of = [&](int chunk) {
      return static_cast<int>(min(end - begin - int64_t{chunk} * kChunk, int64_t{kChunk}));
    };
    const auto fetch = [&](int chunk) {
      MambaInputs& to = shared.inputs[chunk % 2];
      const int count = count_of(chunk);
      const auto* const row = static_cast<const uint16_t*>(a.xbc.data) +
                              (begin + int64_t{chunk} * kChunk) * a.xbc.stride;
      fetch_rows(to.b, row + a.b_at(head), a.xbc.stride, count);
      fetch_rows(to.c, row + a.c_at(head), a.xbc.stride, count);
      fetch_rows(to.x, row + a.x_at(head), a.xbc.stride, count);
    };
    __syncthreads();  // wait until the previous iteration's inputs have been read
    fetch(0);
    cp_async_commit();
    MambaColumns state;
    const float* const from = a.state_before(sequence, head);
    state.load(from != nullptr ? from + columns : nullptr);
    const float skip = a.d[head];
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int64_t first = begin + int64_t{chunk} * kChunk;
      const int count = count_of(chunk);
      add_decays(a, first, count, head, shared);
      cp_async_wait<0>();
      __syncthreads();
      if (chunk + 1 < chunks) fetch(chunk + 1);
      cp_async_commit();
      MambaInputs& in = shared.inputs[chunk % 2];
      multiply_inputs(in, shared);
      uint32_t x[kTokenTiles / 2][4];
#pragma unroll
      for (int i = 0; i < kTokenTiles / 2; ++i)
        ldmatrix_x4<true>(x[i],
                          in.x.at(16 * i + lane / 16 * 8 + lane % 8, columns / 8 + lane / 8 % 2));
      __syncthreads();
      Sums<kTokenTiles> out = {};
      state.output(in, shared, x, skip, out);
      state.advance(in, shared, x);
      auto* const to =
          static_cast<uint16_t*>(a.out.data) + first * a.out.stride + head * kHeadColumns + columns;
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        const int token = 8 * n + lane / 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t pair =
              movmatrix_trans(to_bf16_pair(out[n][2 * half], out[n][2 * half + 1]));
          if (token < count)
            *reinterpret_cast<uint32_t*>(to + token * a.out.stride + 8 * half + lane % 4 * 2) =
                pair;
        }
      }
      __syncthreads();  // wait until gates, scores and inputs have been read
    }
    cp_async_wait<0>();
    state.store(a.state_after(sequence, head) + columns);
  }
}

}  // namespace

bool chunks_mamba2(const Mamba2Args& args, const Queue& queue) {
  const Mamba2Shape& shape = args.shape;
  const auto fits = [](const Matrix& m) {
    return m.dtype == DType::kBF16 && reinterpret_cast<uintptr_t>(m.data) % 16 == 0 &&
           m.stride % 8 == 0;
  };
  int bytes = 0;
  return !shape.batch_invariant && args.batch.most_tokens > kRecurrentMambaTokens &&
         shape.state_dim == kStates && shape.head_dim == kHeadColumns && fits(args.xbc) &&
         fits(args.out) && queue.capability >= 80 &&
         cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, queue.index) ==
             cudaSuccess &&
         bytes >= static_cast<int>(sizeof(MambaChunkShared));
}

Status chunk_mamba2(const Mamba2Args& args, const Queue& queue, Stream stream) {
  {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
    MORACLE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(mamba2_chunks),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      sizeof(MambaChunkShared)));
  }
  return launch_early(queue, stream, "mamba2_chunks", mamba2_chunks,
                      args.batch.num_sequences * args.shape.num_heads, kThreads,
                      sizeof(MambaChunkShared), args);
}

}  // namespace moracle::cuda
