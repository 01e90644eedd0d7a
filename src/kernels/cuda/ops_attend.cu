// Attention: a block for each head of each token, which goes through what the token sees in
// stretches, with the largest score so far (Milakov and Gimelshein, "Online normalizer calculation
// for softmax", 2018). Stretches begin where the token's view does: its bits do not depend on what
// else is in the batch.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/elements.cuh"

namespace moracle {
namespace cuda {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kStretch = 128;

// Rows of one sequence; the caches as matrices, a position a row.
struct AttendArgs {
  Matrix q, keys, values, out;
  int64_t position;  // of the first row
  AttentionShape shape;
};

// scores[j] = q · key(from + j) · scale, a warp for each.
__device__ void score(const AttendArgs& a, const float* query, int64_t first_key, int64_t from,
                      int64_t count, float* scores) {
  const int lane = threadIdx.x % 32;
  for (int64_t j = threadIdx.x / 32; j < count; j += kThreads / 32) {
    float sum = 0;
    for (int64_t d = lane; d < a.shape.head_dim; d += 32)
      sum += query[d] * load(a.keys, from + j, first_key + d);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane == 0) scores[j] = sum * a.shape.scale;
  }
}

__global__ void attend(AttendArgs a) {
  extern __shared__ float room[];  // the query, what it found so far, the scores of a stretch
  const AttentionShape& shape = a.shape;
  float* const query = room;
  float* const found = query + shape.head_dim;
  float* const scores = found + shape.value_dim;
  const float nothing = __int_as_float(0xff800000);  // -inf
  for (int64_t b = blockIdx.x; b < a.q.rows * shape.num_heads; b += gridDim.x) {
    const int64_t t = b / shape.num_heads, head = b % shape.num_heads;
    const int64_t kv = head / (shape.num_heads / shape.num_kv_heads);
    const int64_t end = a.position + t + 1;
    const int64_t begin = shape.window > 0 ? max(int64_t{0}, end - shape.window) : 0;
    __syncthreads();
    for (int64_t d = threadIdx.x; d < shape.head_dim; d += kThreads)
      query[d] = load(a.q, t, head * shape.head_dim + d);
    for (int64_t d = threadIdx.x; d < shape.value_dim; d += kThreads) found[d] = 0;
    // A sink is a score that has no value.
    float largest = shape.sinks != nullptr ? shape.sinks[head] : nothing;
    float sum = shape.sinks != nullptr ? 1.0f : 0.0f;
    for (int64_t from = begin; from < end; from += kStretch) {
      const int64_t count = min(kStretch, end - from);
      __syncthreads();  // the scores before have been used
      score(a, query, kv * shape.head_dim, from, count, scores);
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
        for (int64_t j = 0; j < count; ++j)
          value += scores[j] * load(a.values, from + j, kv * shape.value_dim + d);
        found[d] = value;
      }
    }
    for (int64_t d = threadIdx.x; d < shape.value_dim; d += kThreads)
      store(a.out, t, head * shape.value_dim + d, found[d] / sum);
  }
}

struct Append {
  Matrix from, cache;
  int64_t position;
  __device__ void operator()(int64_t r, int64_t c) const {
    store(cache, position + r, c, load(from, r, c));
  }
};

}  // namespace
}  // namespace cuda

Status CudaOps::attend(const Matrix& q, const Matrix& k, const Matrix& v,
                       std::span<const Span> spans, const AttentionShape& shape, const Matrix& out,
                       Stream stream) {
  static_assert(cuda::kThreads == cuda::kStretch, "a thread for each score");
  MORACLE_CHECK(cuda::check_floats({&q, &k, &v, &out}));
  constexpr int64_t kMost = 12'000;  // floats of shared memory that every GPU has
  const int64_t floats = shape.head_dim + shape.value_dim + cuda::kStretch;
  if (floats > kMost)
    return Error{ErrorKind::kUnsupported, "", "attention",
                 str("heads of at most ", kMost, " columns on cuda"),
                 str("they have ", shape.head_dim, " and ", shape.value_dim)};
  // What f16 has no number for would have to be told from the device.
  if (shape.cache == DType::kF16)
    return Error{ErrorKind::kUnsupported, "", "kv cache", "f32 or bf16 on cuda", "it is f16"};
  for (const Span& span : spans) {
    const int64_t length = span.position + span.num_tokens;
    const Matrix keys{span.keys, shape.cache, length, k.cols, k.cols};
    const Matrix values{span.values, shape.cache, length, v.cols, v.cols};
    auto rows = [&](const Matrix& m) { return m.slice(span.first_token, span.num_tokens); };
    MORACLE_CHECK(cuda::launch_elements(queue_, stream, "append keys", span.num_tokens, k.cols,
                                        cuda::Append{rows(k), keys, span.position}));
    MORACLE_CHECK(cuda::launch_elements(queue_, stream, "append values", span.num_tokens, v.cols,
                                        cuda::Append{rows(v), values, span.position}));
    const cuda::AttendArgs args{rows(q), keys, values, rows(out), span.position, shape};
    MORACLE_CHECK(cuda::launch(queue_, stream, "attend", cuda::attend,
                               span.num_tokens * shape.num_heads, cuda::kThreads,
                               static_cast<size_t>(floats) * sizeof(float), args));
  }
  return {};
}

}  // namespace moracle
