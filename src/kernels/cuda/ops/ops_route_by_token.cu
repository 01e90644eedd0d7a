// Hash layers: a token's id has chosen its experts. A warp per token weighs them.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/route_rows.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle {
namespace cuda {
namespace {

constexpr int kTokenRouteWarps = 4;

struct TokenRouteArgs {
  Matrix logits;
  Routing routing;
  const int32_t *experts, *token_ids;
  int64_t top_k;
  int32_t* ids;
  float* weights;
};

// What turns the logits of a token into scores.
struct TokenScores {
  const TokenRouteArgs& a;
  int64_t token;
  float largest = 0, divisor = 1;

  __device__ TokenScores(const TokenRouteArgs& args, int64_t t) : a(args), token(t) {
    if (is_of_one_logit()) return;
    const int lane = threadIdx.x % 32;
    largest = __int_as_float(0xff800000);
    for (int64_t e = lane; e < a.logits.cols; e += 32)
      largest = fmaxf(largest, load(a.logits, token, e));
    for (int step = 16; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
    if (a.routing.score != Score::kSoftmax) return;
    float sum = 0;
    for (int64_t e = lane; e < a.logits.cols; e += 32)
      sum += expf(load(a.logits, token, e) - largest);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    divisor = sum;
  }
  __device__ bool is_of_one_logit() const {
    return a.routing.score == Score::kSigmoid || a.routing.score == Score::kSqrtSoftplus;
  }
  __device__ float of(int64_t expert) const {
    const float logit = load(a.logits, token, expert);
    if (a.routing.score == Score::kSigmoid) return 1.0f / (1.0f + expf(-logit));
    if (a.routing.score == Score::kSqrtSoftplus) return sqrt_softplus(logit);
    return expf(logit - largest) / divisor;
  }
};

__global__ void __launch_bounds__(32 * kTokenRouteWarps) route_by_token(const TokenRouteArgs a) {
  pdl_wait();
  pdl_launch_dependents();
  const int lane = threadIdx.x % 32;
  for (int64_t t = int64_t{blockIdx.x} * kTokenRouteWarps + threadIdx.x / 32; t < a.logits.rows;
       t += int64_t{gridDim.x} * kTokenRouteWarps) {
    const TokenScores scores(a, t);
    const int32_t* const chosen = a.experts + a.token_ids[t] * a.top_k;
    float sum = 0;
    for (int64_t j = lane; j < a.top_k; j += 32) sum += scores.of(chosen[j]);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    // All scores of single logits may vanish. A token without weight then gets 0, not 0 / 0.
    const float factor = a.routing.scaling_factor / (a.routing.renormalize ? sum + 1e-20f : 1.0f);
    for (int64_t j = lane; j < a.top_k; j += 32) {
      a.ids[t * a.top_k + j] = chosen[j];
      a.weights[t * a.top_k + j] = scores.of(chosen[j]) * factor;
    }
  }
}

}  // namespace
}  // namespace cuda

Status CudaOps::route_by_token(const Matrix& logits, const Routing& routing,
                               const TokenRoutes& table, const int32_t* token_ids, int64_t top_k,
                               int32_t* topk_ids, float* topk_weights, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&logits}));
  constexpr int kWarpsOfBlock = cuda::kTokenRouteWarps;
  return cuda::launch_early(queue_, stream, "route_by_token", cuda::route_by_token,
                            (logits.rows + kWarpsOfBlock - 1) / kWarpsOfBlock, 32 * kWarpsOfBlock,
                            0,
                            cuda::TokenRouteArgs{logits, routing, table.experts, token_ids, top_k,
                                                 topk_ids, topk_weights});
}

}  // namespace moracle
