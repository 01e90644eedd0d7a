// Split-KV (Dao et al., "Flash-Decoding", 2023): CTAs take splits of a token's view, and a second
// kernel merges their results in order.
#pragma once

#include "kernels/cuda/attention/heads.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle::cuda {

constexpr int kTile = 32;  // positions that a warp takes at once

/// Splits of a token's view, in tiles.
struct Splits {
  int32_t first, end, size, count;  // first tile, end tile, tiles per split, splits
};
// Positions of the smallest split. Splits have this size until there are 16 of them, then twice
// this size until there are kMaxSplits. More splits keep a large GPU busy with one sequence, but
// each costs the start of a CTA.
constexpr int64_t kLeastSplit = kTile * kWarps;
/// Depends on the view alone, so a token's bits do not depend on the batch (batch-invariant).
__device__ inline Splits splits_of(const View& view) {
  const int32_t first = view.begin / kTile, end = (view.end + kTile - 1) / kTile;
  const int32_t tiles = end - first;
  constexpr int32_t kMost = static_cast<int32_t>(kMaxSplits) * kWarps;
  int32_t size = tiles <= 16 * kWarps ? kWarps : 2 * kWarps;
  size = max(size, (tiles + kMost - 1) / kMost * kWarps);
  return {first, end, size, (tiles + size - 1) / size};
}
/// Upper bound on the splits of a view of up to `seen` positions.
inline int64_t most_splits(int64_t seen) {
  const int64_t least = (seen + kLeastSplit - 1) / kLeastSplit;
  if (least <= 16) return std::max<int64_t>(least, 1);
  return least <= 2 * kMaxSplits ? std::max<int64_t>(16, (least + 1) / 2) : kMaxSplits;
}

/// Tokens [first_token, first_token + tokens) of the batch, each with at most `splits` splits.
struct SplitArgs {
  AttendArgs attend;
  int64_t first_token, tokens, splits;
};

/// Results of the splits of a head in the scratch: [tokens, heads, splits, value_dim], then the
/// reference and the sum of weights of each split.
struct SplitResults {
  float *values, *states;
};
__device__ inline SplitResults results_of(const SplitArgs& f, int64_t token, int64_t head,
                                          int64_t split) {
  const AttentionShape& shape = f.attend.shape;
  auto* const all = reinterpret_cast<float*>(f.attend.scratch);
  const int64_t at = (token * shape.num_heads + head) * f.splits + split;
  return {all + at * shape.value_dim,
          all + f.tokens * shape.num_heads * f.splits * shape.value_dim + at * 2};
}
/// Bytes of these results for one token.
inline int64_t result_bytes(const AttentionShape& shape, int64_t splits) {
  return shape.num_heads * splits * (shape.value_dim + 2) * static_cast<int64_t>(sizeof(float));
}

/// Computes the factors that rescale the splits of a head to the largest reference, and the sum of
/// weights. Only the first warp calls.
struct SplitState {
  float reference, sum;
};
__device__ inline SplitState rescale_splits(const SplitResults& results, int count,
                                            float* shrinks) {
  constexpr int kEach = kMaxSplits / 32;
  const int lane = threadIdx.x;
  float references[kEach], sums[kEach], most = kMinusInfinity, sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int split = lane + 32 * i;
    references[i] = split < count ? results.states[2 * split] : kMinusInfinity;
    sums[i] = split < count ? results.states[2 * split + 1] : 0.0f;
    most = fmaxf(most, references[i]);
  }
  for (int step = 16; step > 0; step /= 2)
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float shrink = exp2f(references[i] - most);
    shrinks[lane + 32 * i] = shrink;
    sum += sums[i] * shrink;
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return {most, sum};
}

/// One CTA per head of a token. Each warp adds every fourth split. The sums of the warps are then
/// added in warp order.
template <int kValue>
__global__ void __launch_bounds__(kThreads) attend_merge_splits(SplitArgs f) {
  pdl_wait();
  pdl_launch_dependents();
  __shared__ float shrinks[kMaxSplits], factor;
  __shared__ float4 values[kWarps][kValue / 4];
  const AttendArgs& a = f.attend;
  const AttentionShape& shape = a.shape;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t b = blockIdx.x; b < f.tokens * shape.num_heads; b += gridDim.x) {
    const int64_t slot = b / shape.num_heads, head = b % shape.num_heads;
    const int64_t token = f.first_token + slot;
    const int32_t sequence = a.batch.sequences[token];
    const Splits splits = splits_of(view_of(a.batch, shape, token));
    if (splits.count == 1 || (!shape.batch_invariant && !is_decode(a.batch, sequence))) continue;
    const SplitResults results = results_of(f, slot, head, 0);
    __syncthreads();  // wait until the previous iteration has been used
    if (warp == 0) {
      const SplitState own = rescale_splits(results, splits.count, shrinks);
      const WithSink all = with_sink(shape, head, own.reference, own.sum);
      if (lane == 0) factor = all.shrink / all.sum;
    }
    __syncthreads();
    if (lane < kValue / 4) {
      float4 sum{};
#pragma unroll 8
      for (int p = warp; p < splits.count; p += kWarps) {
        const float4 four = reinterpret_cast<const float4*>(results.values + p * kValue)[lane];
        const float shrink = shrinks[p];
        sum.x += four.x * shrink, sum.y += four.y * shrink;
        sum.z += four.z * shrink, sum.w += four.w * shrink;
      }
      values[warp][lane] = sum;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < kValue; c += kThreads) {
      float value = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) value += reinterpret_cast<const float*>(values[w])[c];
      store_bf16(a.out, token, head * kValue + c, value * factor);
    }
  }
}

}  // namespace moracle::cuda
