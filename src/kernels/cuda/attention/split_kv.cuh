// Splits a token's context into parts, and merges the results of the parts.
#pragma once

#include "kernels/cuda/attention/decode_heads.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle::cuda {

/// Partition of a token's view, in tiles.
struct Parts {
  int32_t first, end, size, count;  // first tile, end tile, tiles per part, number of parts
};
// Positions of the smallest part. Parts have this size until there are 16 of them, then twice this
// size until there are kAttendParts. More parts keep a large GPU busy with one sequence, but each
// costs a block start.
constexpr int64_t kLeastPart = kTile * kWarps;
__device__ inline Parts parts_of(const View& view) {
  const int32_t first = view.begin / kTile, end = (view.end + kTile - 1) / kTile;
  const int32_t tiles = end - first;
  constexpr int32_t kMost = static_cast<int32_t>(kAttendParts) * kWarps;
  int32_t size = tiles <= 16 * kWarps ? kWarps : 2 * kWarps;
  size = max(size, (tiles + kMost - 1) / kMost * kWarps);
  return {first, end, size, (tiles + size - 1) / size};
}
/// Upper bound on the parts of any view of up to `seen` positions.
inline int64_t most_parts(int64_t seen) {
  const int64_t least = (seen + kLeastPart - 1) / kLeastPart;
  if (least <= 16) return std::max<int64_t>(least, 1);
  return least <= 2 * kAttendParts ? std::max<int64_t>(16, (least + 1) / 2) : kAttendParts;
}

/// Tokens [first_token, first_token + tokens) of the batch, each with at most `parts` parts.
struct FewArgs {
  AttendArgs attend;
  int64_t first_token, tokens, parts;
};

/// Results of the parts in the scratch: [tokens, heads, parts, value_dim], then the largest score
/// and the sum of each part.
struct Found {
  float *values, *largest_and_sum;
};
__device__ inline Found found_at(const FewArgs& f, int64_t token, int64_t head, int64_t part) {
  const AttentionShape& shape = f.attend.shape;
  auto* const all = reinterpret_cast<float*>(f.attend.scratch);
  const int64_t at = (token * shape.num_heads + head) * f.parts + part;
  return {all + at * shape.value_dim,
          all + f.tokens * shape.num_heads * f.parts * shape.value_dim + at * 2};
}
/// Bytes of these results for one token.
inline int64_t found_bytes(const AttentionShape& shape, int64_t parts) {
  return shape.num_heads * parts * (shape.value_dim + 2) * static_cast<int64_t>(sizeof(float));
}

/// Weighs each part relative to the largest score, and sums the weights. Only the first warp calls
/// weigh_parts.
struct Weighed {
  float largest, sum;
};
__device__ inline Weighed weigh_parts(const Found& found, int count, float* weights) {
  constexpr int kEach = kAttendParts / 32;
  const int lane = threadIdx.x;
  float largest[kEach], sums[kEach], most = nothing(), sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int part = lane + 32 * i;
    largest[i] = part < count ? found.largest_and_sum[2 * part] : nothing();
    sums[i] = part < count ? found.largest_and_sum[2 * part + 1] : 0.0f;
    most = fmaxf(most, largest[i]);
  }
  for (int step = 16; step > 0; step /= 2)
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float weight = exp2f(largest[i] - most);
    weights[lane + 32 * i] = weight;
    sum += sums[i] * weight;
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return {most, sum};
}

// Runs a block for each head of each token. Each warp adds every fourth part. The sums of the warps
// are then added in warp order.
template <int kValue>
__global__ void __launch_bounds__(kThreads) merge_parts(FewArgs f) {
  pdl_wait();
  pdl_launch_dependents();
  __shared__ float weights[kAttendParts], factor;
  __shared__ float4 values[kWarps][kValue / 4];
  const AttendArgs& a = f.attend;
  const AttentionShape& shape = a.shape;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t b = blockIdx.x; b < f.tokens * shape.num_heads; b += gridDim.x) {
    const int64_t slot = b / shape.num_heads, head = b % shape.num_heads;
    const int64_t token = f.first_token + slot;
    const int32_t sequence = a.batch.sequences[token];
    const Parts parts = parts_of(view_of(a.batch, shape, token));
    if (parts.count == 1 || (!shape.batch_invariant && !is_few(a.batch, sequence))) continue;
    const Found found = found_at(f, slot, head, 0);
    __syncthreads();  // wait until the previous iteration has been used
    if (warp == 0) {
      const Weighed own = weigh_parts(found, parts.count, weights);
      const WithSink all = with_sink(shape, head, own.largest, own.sum);
      if (lane == 0) factor = all.shrink / all.sum;
    }
    __syncthreads();
    if (lane < kValue / 4) {
      float4 sum{};
#pragma unroll 8
      for (int p = warp; p < parts.count; p += kWarps) {
        const float4 four = reinterpret_cast<const float4*>(found.values + p * kValue)[lane];
        const float weight = weights[p];
        sum.x += four.x * weight, sum.y += four.y * weight;
        sum.z += four.z * weight, sum.w += four.w * weight;
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
