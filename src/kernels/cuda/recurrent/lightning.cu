// Lightning attention token by token. A block keeps 32 columns of a head's state in registers: a
// thread has every fourth row of one column. The state is read once and written once per step.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/recurrent/lightning.cuh"

namespace moracle::cuda {
namespace {

constexpr int kLightningColumns = 32, kLightningSlices = 4,
              kLightningThreads = kLightningColumns * kLightningSlices;

struct LightningShared {
  float q[2][kMostLightningDim], k[2][kMostLightningDim];  // of this token and the next
  float sums[kLightningSlices][kLightningColumns];
};

__device__ float silu_of(float x) {
  return x / (1.0f + expf(-x));
}

// SiLU of a token's q and k into a stage of shared memory.
__device__ void put_token(const LightningArgs& a, int64_t token, int64_t head, int stage,
                          LightningShared& shared) {
  const int64_t dim = a.shape.head_dim, first = 3 * head * dim;
  for (int i = threadIdx.x; i < dim; i += kLightningThreads) {
    shared.q[stage][i] = silu_of(load(a.qkv, token, first + i));
    shared.k[stage][i] = silu_of(load(a.qkv, token, first + dim + i));
  }
}

template <int kRows>
__global__ void __launch_bounds__(kLightningThreads) lightning_step(const LightningArgs a) {
  pdl_wait();
  pdl_launch_dependents();
  __shared__ LightningShared shared;
  const auto dim = static_cast<int>(a.shape.head_dim);
  const auto tiles = static_cast<unsigned>((dim + kLightningColumns - 1) / kLightningColumns),
             heads = static_cast<unsigned>(a.shape.num_heads);
  const int own = threadIdx.x % kLightningColumns, slice = threadIdx.x / kLightningColumns;
  const unsigned all = static_cast<unsigned>(a.batch.num_sequences) * heads * tiles;
  for (unsigned b = blockIdx.x; b < all; b += gridDim.x) {
    const unsigned sequence = b / (heads * tiles), head = b / tiles % heads;
    const int64_t begin = a.batch.first_token[sequence], end = a.batch.first_token[sequence + 1];
    if (begin == end) continue;
    const int column = static_cast<int>(b % tiles) * kLightningColumns + own;
    const bool exists = column < dim;
    const auto state_of = [&](std::byte* base) -> float* {
      if (base == nullptr) return nullptr;
      return reinterpret_cast<float*>(base + a.shape.state) + int64_t{head} * dim * dim;
    };
    const float* const before = state_of(a.batch.states[2 * sequence]);
    float* const after = state_of(a.batch.states[2 * sequence + 1]);
    const float decay = a.decays[head];
    float kept[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = slice + i * kLightningSlices;
      kept[i] = before != nullptr && exists && row < dim ? before[row * dim + column] : 0.0f;
    }
    __syncthreads();  // wait until the previous iteration's rows have been read
    put_token(a, begin, head, 0, shared);
    __syncthreads();
    for (int64_t t = begin; t < end; ++t) {
      const auto stage = static_cast<int>((t - begin) % 2);
      if (t + 1 < end) put_token(a, t + 1, head, 1 - stage, shared);
      const float value =
          exists ? silu_of(load(a.qkv, t, (3 * int64_t{head} + 2) * dim + column)) : 0.0f;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = slice + i * kLightningSlices;
        if (row >= dim) continue;
        kept[i] = fmaf(shared.k[stage][row], value, decay * kept[i]);
        sum = fmaf(shared.q[stage][row], kept[i], sum);
      }
      shared.sums[slice][own] = sum;
      __syncthreads();
      if (slice == 0 && exists) {
        float whole = 0;
#pragma unroll
        for (int s = 0; s < kLightningSlices; ++s) whole += shared.sums[s][own];
        store(a.out, t, int64_t{head} * dim + column, whole);
      }
      __syncthreads();  // the sums have been read
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = slice + i * kLightningSlices;
      if (exists && row < dim) after[row * dim + column] = kept[i];
    }
  }
}

}  // namespace

Status step_lightning(const LightningArgs& args, const Queue& queue, Stream stream) {
  const int64_t tiles = (args.shape.head_dim + kLightningColumns - 1) / kLightningColumns;
  const auto kernel = args.shape.head_dim <= 128
                          ? lightning_step<128 / kLightningSlices>
                          : lightning_step<kMostLightningDim / kLightningSlices>;
  return launch_early(queue, stream, "lightning", kernel,
                      args.batch.num_sequences * args.shape.num_heads * tiles, kLightningThreads, 0,
                      args);
}

}  // namespace moracle::cuda
