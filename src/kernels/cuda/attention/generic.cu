// Attention for any head sizes and dtypes: a CTA per head of a token. It goes through the token's
// view in steps of kStep positions with an online softmax (Milakov and Gimelshein, 2018). Steps
// begin where the view begins, so the bits do not depend on the rest of the batch
// (batch-invariant).
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/page_source.cuh"
#include "kernels/cuda/attention/pages.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/each_element.cuh"

namespace moracle::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int32_t kStep = 128;
static_assert(kThreads == kStep, "a thread for each score");

// Cached keys or values of one head of a sequence. `offset` is theirs in a page.
struct CachedRows {
  const Batch& batch;
  int32_t sequence;
  DType dtype;
  int64_t offset, head, dim;

  __device__ Matrix at(int32_t position) const {
    std::byte* const page = page_of(batch, sequence, position) + offset;
    const int64_t skipped = row_in_page(batch, head, position) * dim;
    return {page + skipped * cache_element(dtype), dtype, 1, dim, dim};
  }
};
__device__ inline float load_cached(const Matrix& row, int64_t d) {
  if (row.dtype == DType::kF8E4M3) return e4m3_to_float(static_cast<const uint8_t*>(row.data)[d]);
  return load(row, 0, d);
}

__global__ void attend_generic(AttendArgs a) {
  extern __shared__ float scratch[];  // query, sums of values, scores of a step
  const AttentionShape& shape = a.shape;
  const LayerCache& cache = shape.cache;
  float* const query = scratch;
  float* const acc = query + shape.head_dim;
  float* const scores = acc + shape.value_dim;
  const float nothing = __int_as_float(0xff800000);  // -inf
  const int lane = threadIdx.x % 32;
  for (int64_t b = blockIdx.x; b < a.q.rows * shape.num_heads; b += gridDim.x) {
    const int64_t t = b / shape.num_heads, head = b % shape.num_heads;
    const int64_t kv = head / (shape.num_heads / shape.num_kv_heads);
    const int32_t sequence = a.batch.sequences[t];
    const CachedRows keys{a.batch, sequence, cache.dtype, cache.keys, kv, shape.head_dim};
    const CachedRows values{a.batch, sequence, cache.dtype, cache.values, kv, shape.value_dim};
    const View view = view_of(a.batch, shape, t);
    __syncthreads();
    for (int64_t d = threadIdx.x; d < shape.head_dim; d += kThreads)
      query[d] = load(a.q, t, head * shape.head_dim + d);
    for (int64_t d = threadIdx.x; d < shape.value_dim; d += kThreads) acc[d] = 0;
    // A sink is a score without a value.
    float largest = shape.sinks != nullptr ? shape.sinks[head] : nothing;
    float sum = shape.sinks != nullptr ? 1.0f : 0.0f;
    for (int32_t from = view.begin; from < view.end; from += kStep) {
      const int32_t count = min(kStep, view.end - from);
      __syncthreads();  // wait until the previous scores have been used
      // A warp computes each score.
      for (int32_t j = threadIdx.x / 32; j < count; j += kThreads / 32) {
        const Matrix key = keys.at(from + j);
        float product = 0;
        for (int64_t d = lane; d < shape.head_dim; d += 32)
          product += query[d] * load_cached(key, d);
        for (int step = 16; step > 0; step /= 2)
          product += __shfl_xor_sync(kAllLanes, product, step);
        if (lane == 0) scores[j] = product * shape.scale;
      }
      __syncthreads();
      const float own = threadIdx.x < count ? scores[threadIdx.x] : nothing;
      const float most =
          fmaxf(largest, block_reduce(own, nothing, [](float x, float y) { return fmaxf(x, y); }));
      const float shrink = expf(largest - most);
      const float weight = threadIdx.x < count ? expf(own - most) : 0.0f;
      sum = sum * shrink + block_sum(weight);
      if (threadIdx.x < count) scores[threadIdx.x] = weight;
      largest = most;
      __syncthreads();
      for (int64_t d = threadIdx.x; d < shape.value_dim; d += kThreads) {
        float value = acc[d] * shrink;
        for (int32_t j = 0; j < count; ++j)
          value += scores[j] * load_cached(values.at(from + j), d);
        acc[d] = value;
      }
    }
    for (int64_t d = threadIdx.x; d < shape.value_dim; d += kThreads)
      store(a.out, t, head * shape.value_dim + d, acc[d] * cache.value_scale / sum);
  }
}

}  // namespace

Status launch_generic(const AttendArgs& args, const Queue& queue, Stream stream) {
  constexpr int64_t kMost = 12'000;  // floats of shared memory that every GPU has
  const AttentionShape& shape = args.shape;
  const int64_t floats = shape.head_dim + shape.value_dim + kStep;
  if (floats > kMost)
    return Error{ErrorKind::kUnsupported, "", "attention",
                 str("heads of at most ", kMost, " columns on cuda"),
                 str("they have ", shape.head_dim, " and ", shape.value_dim)};
  return launch(queue, stream, "attend_generic", attend_generic, args.q.rows * shape.num_heads,
                kThreads, static_cast<size_t>(floats) * sizeof(float), args);
}

}  // namespace moracle::cuda
