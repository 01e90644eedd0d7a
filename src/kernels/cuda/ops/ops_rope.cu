// Per-head RMSNorm, RoPE and append to the cache in one kernel. A warp handles each head of q, k
// and v of each token.
#include "kernels/cuda/attention/pages.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/keep.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/rope_heads.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle {
namespace cuda {
namespace {

constexpr int kWarps = 4, kRopeThreads = 32 * kWarps;
constexpr int64_t kMostColumns = 512;  // columns of a head, all of them in shared memory

// Applies RMSNorm to a head.
__device__ void norm(float* head, const float* weight, int64_t dim, float epsilon) {
  const int lane = threadIdx.x % 32;
  float squares = 0;
  for (int64_t c = lane; c < dim; c += 32) squares += head[c] * head[c];
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(kAllLanes, squares, step);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(dim) + epsilon);
  for (int64_t c = lane; c < dim; c += 32) head[c] *= scale * weight[c];
  __syncwarp();
}

__device__ void rotate(float* head, const RotaryShape& shape, const float* frequencies,
                       int32_t position) {
  for (int64_t i = threadIdx.x % 32; i < shape.num_pairs; i += 32) {
    float* const first = head + shape.first + (shape.interleaved ? 2 * i : i);
    float* const second = first + (shape.interleaved ? 1 : shape.num_pairs);
    const float angle = static_cast<float>(position) * frequencies[i];
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    sine *= shape.factor, cosine *= shape.factor;
    const float a = *first, b = *second;
    *first = a * cosine - b * sine;
    *second = b * cosine + a * sine;
  }
  __syncwarp();
}

__global__ void __launch_bounds__(kRopeThreads) rope_and_append(RopeArgs a) {
  pdl_wait();
  pdl_launch_dependents();
  __shared__ float head_of_warp[kWarps][kMostColumns];
  const int64_t dim = a.rope.rotary.head_dim;
  const int64_t q_heads = a.q.cols / dim, kv_heads = a.k.cols / dim;
  const int64_t heads = q_heads + 2 * kv_heads, warp = threadIdx.x / 32;
  float* const head = head_of_warp[warp];
  for (int64_t b = blockIdx.x * kWarps + warp; b < a.q.rows * heads; b += gridDim.x * kWarps) {
    const int64_t t = b / heads, at = b % heads;
    const bool is_query = at < q_heads, is_key = !is_query && at < q_heads + kv_heads;
    const Matrix& from = is_query ? a.q : is_key ? a.k : a.v;
    // Issue these dependent loads early to hide their latency.
    const int32_t position = a.batch.positions[t];
    std::byte* const page = page_of(a.batch, a.batch.sequences[t], position);
    const int64_t first = (is_query ? at : is_key ? at - q_heads : at - q_heads - kv_heads) * dim;
    for (int64_t c = threadIdx.x % 32; c < dim; c += 32) head[c] = load(from, t, first + c);
    __syncwarp();
    if (is_query || is_key) {
      const float* const weight = is_query ? a.rope.q_norm : a.rope.k_norm;
      if (weight != nullptr) norm(head, weight, dim, a.rope.epsilon);
      rotate(head, a.rope.rotary, a.rope.frequencies, position);
    }
    if (is_query) {
      for (int64_t c = threadIdx.x % 32; c < dim; c += 32) store(a.q, t, first + c, head[c]);
    } else {
      std::byte* const to = page + (is_key ? a.cache.keys : a.cache.values);
      const int64_t row = row_in_page(a.batch, first / dim, position) * dim;
      const float factor = 1.0f / (is_key ? a.cache.key_scale : a.cache.value_scale);
      // Round to the activation dtype first, even if the cache is wider.
      for (int64_t c = threadIdx.x % 32; c < dim; c += 32) {
        const float kept =
            a.k.dtype == DType::kBF16 ? bf16_to_float(float_to_bf16(head[c])) : head[c];
        keep(to, a.cache.dtype, row + c, kept * factor, t, a.device_error);
      }
    }
    __syncwarp();  // wait until the head has been read
  }
}

auto rope_kernel(int64_t dim, bool many) {
  if (dim == 64) return many ? rope_heads<64, true> : rope_heads<64, false>;
  return many ? rope_heads<128, true> : rope_heads<128, false>;
}

}  // namespace
}  // namespace cuda

Status CudaOps::rope_and_append(const Matrix& q, const Matrix& k, const Matrix& v,
                                const QkNormRope& rope, const Batch& batch, const LayerCache& cache,
                                Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&q, &k, &v}));
  const int64_t dim = rope.rotary.head_dim;
  if (dim > cuda::kMostColumns || v.cols != k.cols)
    return Ops::rope_and_append(q, k, v, rope, batch, cache, stream);
  const int64_t heads = (q.cols + k.cols + v.cols) / dim;
  const cuda::RopeArgs args{
      q, k, v, rope, batch, cache, device_errors_.cell(DeviceErrorKind::kKvCache)};
  if (cuda::ropes_in_registers(args)) {
    const bool many = q.rows >= cuda::kManyRopeRows;
    const int64_t together = many ? heads : cuda::heads_of_warp(dim, many),
                  warps = q.rows * ((heads + together - 1) / together);
    return cuda::launch_early(queue_, stream, "rope_heads", cuda::rope_kernel(dim, many),
                              (warps + cuda::kHeadWarps - 1) / cuda::kHeadWarps,
                              32 * cuda::kHeadWarps, 0, args);
  }
  return cuda::launch_early(queue_, stream, "rope_and_append", cuda::rope_and_append,
                            (q.rows * heads + cuda::kWarps - 1) / cuda::kWarps, cuda::kRopeThreads,
                            0, args);
}

}  // namespace moracle
