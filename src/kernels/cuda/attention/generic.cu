// Attention for any sizes and types. A block handles each head of each token. It goes through the
// token's view in stretches and keeps the largest score so far (Milakov and Gimelshein, "Online
// normalizer calculation for softmax", 2018). Stretches begin where the view begins, so the bits do
// not depend on the rest of the batch (batch-invariant).
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/cache_elements.cuh"
#include "kernels/cuda/attention/pages.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/elements.cuh"

namespace moracle::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int32_t kStretch = 128;
static_assert(kThreads == kStretch, "a thread for each score");

// Keys or values of one head, addressed by position.
struct Lines {
  const Batch& batch;
  int32_t sequence;
  DType dtype;
  int64_t place, head, dim;  // offset in a page; head; elements of a position

  __device__ Matrix at(int32_t position) const {
    std::byte* const page = page_of(batch, sequence, position) + place;
    const int64_t skipped = row_in_page(batch, head, position) * dim;
    return {page + skipped * cache_element(dtype), dtype, 1, dim, dim};
  }
};
__device__ inline float load_cached(const Matrix& line, int64_t d) {
  if (line.dtype == DType::kF8E4M3) return e4m3_to_float(static_cast<const uint8_t*>(line.data)[d]);
  return load(line, 0, d);
}

// scores[j] = q · key(from + j) · scale. A warp computes each score.
__device__ void score(const Lines& keys, const AttentionShape& shape, const float* query,
                      int32_t from, int32_t count, float* scores) {
  const int lane = threadIdx.x % 32;
  for (int32_t j = threadIdx.x / 32; j < count; j += kThreads / 32) {
    const Matrix key = keys.at(from + j);
    float sum = 0;
    for (int64_t d = lane; d < shape.head_dim; d += 32) sum += query[d] * load_cached(key, d);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane == 0) scores[j] = sum * shape.scale;
  }
}

__global__ void attend(AttendArgs a) {
  extern __shared__ float scratch[];  // query, values found so far, scores of a stretch
  const AttentionShape& shape = a.shape;
  float* const query = scratch;
  float* const found = query + shape.head_dim;
  float* const scores = found + shape.value_dim;
  const float nothing = __int_as_float(0xff800000);  // -inf
  for (int64_t b = blockIdx.x; b < a.q.rows * shape.num_heads; b += gridDim.x) {
    const int64_t t = b / shape.num_heads, head = b % shape.num_heads;
    const int64_t kv = head / (shape.num_heads / shape.num_kv_heads);
    const int32_t sequence = a.batch.sequences[t];
    const Lines keys{a.batch, sequence, shape.cache.dtype, shape.cache.keys, kv, shape.head_dim};
    const Lines values{a.batch, sequence,       shape.cache.dtype, shape.cache.values,
                       kv,      shape.value_dim};
    const View view = view_of(a.batch, shape, t);
    __syncthreads();
    for (int64_t d = threadIdx.x; d < shape.head_dim; d += kThreads)
      query[d] = load(a.q, t, head * shape.head_dim + d);
    for (int64_t d = threadIdx.x; d < shape.value_dim; d += kThreads) found[d] = 0;
    // A sink is a score without a value.
    float largest = shape.sinks != nullptr ? shape.sinks[head] : nothing;
    float sum = shape.sinks != nullptr ? 1.0f : 0.0f;
    for (int32_t from = view.begin; from < view.end; from += kStretch) {
      const int32_t count = min(kStretch, view.end - from);
      __syncthreads();  // wait until the previous scores have been used
      score(keys, shape, query, from, count, scores);
      __syncthreads();
      const float own = threadIdx.x < count ? scores[threadIdx.x] : nothing;
      const float most =
          fmaxf(largest, block_reduce(own, nothing, [](float x, float y) { return fmaxf(x, y); }));
      const float shrink = expf(largest - most);
      const float share = threadIdx.x < count ? expf(own - most) : 0.0f;
      sum = sum * shrink + block_sum(share);
      if (threadIdx.x < count) scores[threadIdx.x] = share;
      largest = most;
      __syncthreads();
      for (int64_t d = threadIdx.x; d < shape.value_dim; d += kThreads) {
        float value = found[d] * shrink;
        for (int32_t j = 0; j < count; ++j)
          value += scores[j] * load_cached(values.at(from + j), d);
        found[d] = value;
      }
    }
    for (int64_t d = threadIdx.x; d < shape.value_dim; d += kThreads)
      store(a.out, t, head * shape.value_dim + d, found[d] * shape.cache.value_scale / sum);
  }
}

}  // namespace

Status attend_simply(const AttendArgs& args, const Queue& queue, Stream stream) {
  constexpr int64_t kMost = 12'000;  // floats of shared memory that every GPU has
  const AttentionShape& shape = args.shape;
  const int64_t floats = shape.head_dim + shape.value_dim + kStretch;
  if (floats > kMost)
    return Error{ErrorKind::kUnsupported, "", "attention",
                 str("heads of at most ", kMost, " columns on cuda"),
                 str("they have ", shape.head_dim, " and ", shape.value_dim)};
  return launch(queue, stream, "attend", attend, args.q.rows * shape.num_heads, kThreads,
                static_cast<size_t>(floats) * sizeof(float), args);
}

}  // namespace moracle::cuda
