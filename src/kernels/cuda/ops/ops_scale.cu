// Scales and copies of experts, capped and masked logits.
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace moracle {
namespace cuda {
namespace {

struct TakeIdentity {
  int32_t* ids;
  const float* weights;
  int32_t top_k, num_experts;
  float* sums;
  __device__ void operator()(int64_t, int64_t t) const {
    float sum = 0;
    for (int64_t j = t * top_k; j < (t + 1) * top_k; ++j) {
      if (ids[j] < num_experts) continue;
      ids[j] = -1;
      sum += weights[j];
    }
    sums[t] = sum;
  }
};

struct ScaleByExpert {
  const int32_t* ids;
  const float* scales;
  float* weights;
  __device__ void operator()(int64_t, int64_t i) const {
    if (ids[i] >= 0) weights[i] *= scales[ids[i]];
  }
};

struct KeepOwn {
  const int32_t* ids;
  int32_t top_k;
  const int32_t* copies;
  int64_t num_experts;
  int32_t* own;
  __device__ void operator()(int64_t t, int64_t j) const {
    const int64_t i = t * top_k + j;
    const int32_t id = ids[i];
    const bool is_here =
        id < 0 || copies[id] == 1 || (t + id) % copies[id] == copies[num_experts + id];
    own[i] = is_here ? id : -1;
  }
};

struct Cap {
  Matrix x;
  float cap;
  __device__ void operator()(int64_t r, int64_t c) const {
    store(x, r, c, cap * tanhf(load(x, r, c) / cap));
  }
};

struct KeepAllowed {
  Matrix x;
  const uint32_t* allowed;
  int64_t row_words;
  __device__ void operator()(int64_t r, int64_t c) const {
    const uint32_t word = allowed[r * row_words + c / 32];
    if ((word >> (c % 32) & 1) == 0) store(x, r, c, __int_as_float(0xff800000));
  }
};

}  // namespace
}  // namespace cuda

Status CudaOps::take_identity(int32_t* ids, const float* weights, int64_t num_tokens, int64_t top_k,
                              int64_t num_experts, float* sums, Stream stream) {
  return cuda::launch_elements(queue_, stream, "take_identity", 1, num_tokens,
                               cuda::TakeIdentity{ids, weights, static_cast<int32_t>(top_k),
                                                  static_cast<int32_t>(num_experts), sums});
}

Status CudaOps::scale_by_expert(const int32_t* ids, int64_t count, const float* scales,
                                float* weights, Stream stream) {
  return cuda::launch_elements(queue_, stream, "scale_by_expert", 1, count,
                               cuda::ScaleByExpert{ids, scales, weights});
}

Status CudaOps::keep_own(const int32_t* ids, int64_t num_tokens, int64_t top_k,
                         const int32_t* copies, int64_t num_experts, int32_t* own, Stream stream) {
  return cuda::launch_elements(
      queue_, stream, "keep_own", num_tokens, top_k,
      cuda::KeepOwn{ids, static_cast<int32_t>(top_k), copies, num_experts, own});
}

Status CudaOps::cap(const Matrix& x, float cap, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x}));
  return cuda::launch_elements(queue_, stream, "cap", x.rows, x.cols, cuda::Cap{x, cap});
}

Status CudaOps::keep_allowed(const Matrix& x, const uint32_t* allowed, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&x}));
  return cuda::launch_elements(queue_, stream, "keep_allowed", x.rows, x.cols,
                               cuda::KeepAllowed{x, allowed, (x.cols + 31) / 32});
}

}  // namespace moracle
