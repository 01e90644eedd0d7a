// Compressed attention: a token sees the last positions of its window, then entries. All heads
// share one row for each, which is key and value. A CTA takes some heads of a token, so that they
// share the loads of a row, with an online softmax. The order of rows depends on the token alone,
// so the bits do not depend on the batch (batch-invariant).
#include "base/text.h"
#include "kernels/cuda/attention/cached_rows.cuh"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace moracle {
namespace cuda {
namespace {

struct CompressedArgs {
  Matrix q, out;
  Batch batch;
  CompressedShape shape;
};

constexpr int kHeadsOfBlock = kWarps;    // a warp has the softmax of one head
constexpr int kRowsOfStep = kThreads;    // between two updates of the softmax
constexpr int kEach = kRowsOfStep / 32;  // scores of a lane

// What one token sees, in order: positions of its window, then entries.
struct Seen {
  int32_t first, positions, entries;
  const int32_t* selected;  // entries; null: the first ones

  __device__ int32_t count() const { return positions + entries; }
};

__device__ Seen seen_by(const CompressedArgs& a, int64_t token) {
  const CompressedShape& shape = a.shape;
  const int32_t position = a.batch.positions[token];
  const int64_t first = max(int64_t{0}, position + 1 - shape.window);
  Seen seen{static_cast<int32_t>(first), position + 1 - static_cast<int32_t>(first), 0, nullptr};
  if (shape.rate > 0) seen.entries = (position + 1) / static_cast<int32_t>(shape.rate);
  if (shape.selected != nullptr && seen.entries > shape.top_k) {
    seen.entries = static_cast<int32_t>(shape.top_k);
    seen.selected = shape.selected + token * shape.top_k;
  }
  return seen;
}

// Divides 32-bit numbers.
template <DType kCache>
__device__ const std::byte* row_of(const CompressedArgs& a, const Seen& seen, int32_t sequence,
                                   int32_t at) {
  const LayerCache& cache = a.shape.cache;
  const int64_t bytes = a.shape.head_dim * cache_element(kCache);
  if (at < seen.positions) {
    const int32_t position = seen.first + at;
    return page_of(a.batch, sequence, position) + cache.keys +
           row_in_page(a.batch, 0, position) * bytes;
  }
  const auto rate = static_cast<int32_t>(a.shape.rate), page = static_cast<int32_t>(a.batch.page);
  const int32_t number = at - seen.positions;
  const int32_t position = (seen.selected == nullptr ? number : seen.selected[number]) * rate;
  return page_of(a.batch, sequence, position) + cache.entries + position % page / rate * bytes;
}

// scores[h, j] of `count` rows. Each warp takes rows in groups, and multiplies each by all heads.
template <DType kCache>
__device__ void score_rows(const std::byte* const* rows, const float* queries, int64_t dim,
                           int32_t count, float (&scores)[kHeadsOfBlock][kRowsOfStep]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool vectors = dim % 8 == 0;
  for (int32_t first = warp * kKeysTogether; first < count; first += kWarps * kKeysTogether) {
    float products[kKeysTogether][kHeadsOfBlock] = {};
    const std::byte* keys[kKeysTogether];
#pragma unroll
    for (int j = 0; j < kKeysTogether; ++j) keys[j] = rows[min(first + j, count - 1)];
    if (vectors) {
      for (int64_t d = lane * 8; d < dim; d += 32 * 8) {
        float numbers[kKeysTogether][8];
#pragma unroll
        for (int j = 0; j < kKeysTogether; ++j) load_lane<kCache>(keys[j], d, numbers[j]);
#pragma unroll
        for (int h = 0; h < kHeadsOfBlock; ++h) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const float query = queries[h * dim + d + i];
#pragma unroll
            for (int j = 0; j < kKeysTogether; ++j) products[j][h] += query * numbers[j][i];
          }
        }
      }
    } else {
      for (int64_t d = lane; d < dim; d += 32) {
#pragma unroll
        for (int j = 0; j < kKeysTogether; ++j) {
          const float number = load_one<kCache>(keys[j], d);
#pragma unroll
          for (int h = 0; h < kHeadsOfBlock; ++h) products[j][h] += queries[h * dim + d] * number;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kKeysTogether; ++j) {
#pragma unroll
      for (int h = 0; h < kHeadsOfBlock; ++h) {
        for (int step = 16; step > 0; step /= 2)
          products[j][h] += __shfl_xor_sync(kAllLanes, products[j][h], step);
        if (lane == 0 && first + j < count) scores[h][first + j] = products[j][h];
      }
    }
  }
}

// The softmax of one head, in one warp: all lanes have the same numbers.
struct Softmax {
  float largest, sum;

  // Turns `count` scores into weights. Returns the factor of earlier weights.
  __device__ float update(float (&scores)[kRowsOfStep], int32_t count) {
    const int lane = threadIdx.x % 32;
    float own[kEach], most = largest, total = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      own[i] = lane + 32 * i < count ? scores[lane + 32 * i] : kMinusInfinity;
      most = fmaxf(most, own[i]);
    }
    for (int step = 16; step > 0; step /= 2)
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (lane + 32 * i >= count) continue;
      const float weight = exp2f(own[i] - most);
      scores[lane + 32 * i] = weight;
      total += weight;
    }
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
    const float shrink = exp2f(largest - most);
    largest = most;
    sum = sum * shrink + total;
    return shrink;
  }
};

template <DType kCache>
__global__ void __launch_bounds__(kThreads) attend_compressed(CompressedArgs a) {
  extern __shared__ float scratch[];  // queries of the heads, then their sums of values
  __shared__ const std::byte* rows[kRowsOfStep];
  __shared__ float scores[kHeadsOfBlock][kRowsOfStep], shrinks[kHeadsOfBlock], sums[kHeadsOfBlock];
  const CompressedShape& shape = a.shape;
  const int64_t dim = shape.head_dim,
                groups = (shape.num_heads + kHeadsOfBlock - 1) / kHeadsOfBlock;
  float *const queries = scratch, *const acc = scratch + kHeadsOfBlock * dim;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  for (int64_t b = blockIdx.x; b < a.batch.num_tokens * groups; b += gridDim.x) {
    const int64_t token = b / groups, first_head = b % groups * kHeadsOfBlock;
    const int64_t heads = min(int64_t{kHeadsOfBlock}, shape.num_heads - first_head);
    const int32_t sequence = a.batch.sequences[token];
    const Seen seen = seen_by(a, token);
    __syncthreads();  // wait until the previous sums have been stored
    for (int64_t i = thread; i < kHeadsOfBlock * dim; i += kThreads) {
      queries[i] =
          i < heads * dim ? load(a.q, token, first_head * dim + i) * (shape.scale * kLog2E) : 0.0f;
      acc[i] = 0;
    }
    // A sink is a score without a value. Heads past the last one have scores of 0.
    Softmax softmax{warp < heads ? shape.sinks[first_head + warp] * kLog2E : 0.0f, 1};
    for (int32_t from = 0; from < seen.count(); from += kRowsOfStep) {
      const int32_t count = min(kRowsOfStep, seen.count() - from);
      __syncthreads();  // wait until the previous weights have been used
      if (thread < count) rows[thread] = row_of<kCache>(a, seen, sequence, from + thread);
      __syncthreads();
      score_rows<kCache>(rows, queries, dim, count, scores);
      __syncthreads();
      const float shrink = softmax.update(scores[warp], count);
      if (thread % 32 == 0) shrinks[warp] = shrink;
      __syncthreads();
      for (int64_t d = thread; d < dim; d += kThreads) {
        float values[kHeadsOfBlock];
#pragma unroll
        for (int h = 0; h < kHeadsOfBlock; ++h) values[h] = acc[h * dim + d] * shrinks[h];
#pragma unroll 8
        for (int32_t j = 0; j < count; ++j) {
          const float number = load_one<kCache>(rows[j], d);
#pragma unroll
          for (int h = 0; h < kHeadsOfBlock; ++h) values[h] += scores[h][j] * number;
        }
#pragma unroll
        for (int h = 0; h < kHeadsOfBlock; ++h) acc[h * dim + d] = values[h];
      }
    }
    if (thread % 32 == 0) sums[warp] = softmax.sum;
    __syncthreads();
    for (int64_t i = thread; i < heads * dim; i += kThreads)
      store(a.out, token, first_head * dim + i, acc[i] / sums[i / dim]);
  }
}

}  // namespace
}  // namespace cuda

Status CudaOps::attend_compressed(const Matrix& q, const Batch& batch, const CompressedShape& shape,
                                  const Matrix& out, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&q, &out}));
  constexpr int64_t kMost = 1'200;  // queries and sums of four heads fit into 38 KiB
  if (shape.head_dim > kMost) {
    return Error{ErrorKind::kUnsupported, "", "compressed attention",
                 str("heads of at most ", kMost, " columns on cuda"),
                 str("they have ", shape.head_dim)};
  }
  const auto kernel = [&] {
    switch (shape.cache.dtype) {
      case DType::kF32:
        return cuda::attend_compressed<DType::kF32>;
      case DType::kBF16:
        return cuda::attend_compressed<DType::kBF16>;
      default:
        return cuda::attend_compressed<DType::kF16>;
    }
  }();
  const int64_t groups = (shape.num_heads + cuda::kHeadsOfBlock - 1) / cuda::kHeadsOfBlock;
  const auto floats = static_cast<size_t>(2 * cuda::kHeadsOfBlock * shape.head_dim);
  return cuda::launch(queue_, stream, "attend_compressed", kernel, batch.num_tokens * groups,
                      cuda::kThreads, floats * sizeof(float),
                      cuda::CompressedArgs{q, out, batch, shape});
}

}  // namespace moracle
