// Turns router logits into experts and their weights, by the rules of kernels/cpu/ops/ops_route.cc.
// One warp handles each token if its scores fit into registers and experts have no groups.
// Otherwise one block handles each token, with the scores in shared memory. The logits do not
// change.
#include "kernels/check_ops.h"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/route_rows.cuh"
#include "kernels/cuda/ops/sparse_mixer.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle {
namespace cuda {
namespace {

constexpr int kRouteThreads = 128;
// Marks an expert that is excluded. Scores are never negative.
constexpr float kOut = -1.0f;

struct Scores {
  float* scores;
  int32_t num_experts;
  float divisor;  // turns a score into a share
  const float* bias;

  __device__ float rank(int32_t e) const {
    return bias == nullptr ? scores[e] : scores[e] / divisor + bias[e];
  }
};

struct Best {
  float rank;
  int32_t id;  // -1: none
};
// Returns the better of two; the lower id wins a tie. A NaN is never better, but still an expert.
__device__ Best better(Best a, Best b) {
  if (b.id < 0) return a;
  if (a.id < 0 || b.rank > a.rank || (b.rank == a.rank && b.id < a.id)) return b;
  return a;
}

// Returns the best expert of [first, last) that is not excluded. Runs in one thread.
__device__ Best best_of(const Scores& s, int32_t first, int32_t last, int32_t without) {
  Best best{0, -1};
  for (int32_t e = first; e < last; ++e)
    if (e != without && s.scores[e] != kOut) best = better(best, {s.rank(e), e});
  return best;
}

__device__ Best block_best(const Scores& s) {
  Best best{0, -1};
  for (int32_t e = threadIdx.x; e < s.num_experts; e += kRouteThreads)
    if (s.scores[e] != kOut) best = better(best, {s.rank(e), e});
  __shared__ Best of_warp[kRouteThreads / 32];
  for (int step = 16; step > 0; step /= 2)
    best = better(best, {__shfl_xor_sync(kAllLanes, best.rank, step),
                         __shfl_xor_sync(kAllLanes, best.id, step)});
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = best;
  __syncthreads();
  best = of_warp[0];
  for (int w = 1; w < kRouteThreads / 32; ++w) best = better(best, of_warp[w]);
  return best;
}

// Excludes the worst groups until `keep` groups are left; the higher id loses a tie. A group's rank
// is its best score, or the sum of its two best scores if there is a bias.
__device__ void drop_groups(const Scores& s, int32_t num_groups, int32_t keep, float* ranks) {
  const int32_t size = s.num_experts / num_groups;
  for (int32_t g = threadIdx.x; g < num_groups; g += kRouteThreads) {
    const int32_t first = g * size, last = first + size;
    const Best best = best_of(s, first, last, -1);
    ranks[g] = best.rank;
    if (s.bias != nullptr && size > 1) ranks[g] += best_of(s, first, last, best.id).rank;
  }
  for (int32_t left = num_groups; left > keep; --left) {
    __syncthreads();
    int32_t worst = -1;
    for (int32_t g = num_groups - 1; g >= 0; --g) {
      if (s.scores[g * size] == kOut) continue;
      if (worst < 0 || ranks[g] < ranks[worst]) worst = g;
    }
    __syncthreads();  // wait until all threads have read the scores
    for (int32_t e = threadIdx.x; e < size; e += kRouteThreads) s.scores[worst * size + e] = kOut;
  }
  __syncthreads();
}

// Turns a token's logits into scores. Returns the divisor of its weights.
__device__ float score(const RouteArgs& a, int64_t t, float* scores) {
  const int64_t count = a.logits.cols;
  if (a.routing.score == Score::kSigmoid) {
    for (int64_t e = threadIdx.x; e < count; e += kRouteThreads)
      scores[e] = 1.0f / (1.0f + expf(-load(a.logits, t, e)));
    __syncthreads();
    return 1;
  }
  if (a.routing.score == Score::kSqrtSoftplus) {
    for (int64_t e = threadIdx.x; e < count; e += kRouteThreads)
      scores[e] = sqrt_softplus(load(a.logits, t, e));
    __syncthreads();
    return 1;
  }
  float largest = __int_as_float(0xff800000);
  for (int64_t e = threadIdx.x; e < count; e += kRouteThreads)
    largest = fmaxf(largest, load(a.logits, t, e));
  largest = block_reduce(largest, __int_as_float(0xff800000),
                         [](float x, float y) { return fmaxf(x, y); });
  float sum = 0;
  for (int64_t e = threadIdx.x; e < count; e += kRouteThreads) {
    scores[e] = expf(load(a.logits, t, e) - largest);
    sum += scores[e];
  }
  sum = block_sum(sum);
  __syncthreads();
  return a.routing.score == Score::kSoftmax ? sum : 1;
}

template <int kEach>
__global__ void __launch_bounds__(kRouteThreads) route_by_warps(RouteArgs a) {
  pdl_wait();
  pdl_launch_dependents();
  constexpr int kWarps = kRouteThreads / 32;
  for (int64_t t = blockIdx.x * kWarps + threadIdx.x / 32; t < a.logits.rows;
       t += gridDim.x * kWarps)
    route_in_warp<kEach>(a, t);
}

__global__ void route(RouteArgs a) {
  pdl_wait();
  pdl_launch_dependents();
  extern __shared__ float scratch[];  // scores of all experts, then ranks of all groups
  const auto num_experts = static_cast<int32_t>(a.logits.cols);
  const Routing& routing = a.routing;
  for (int64_t t = blockIdx.x; t < a.logits.rows; t += gridDim.x) {
    __syncthreads();
    const Scores scores{scratch, num_experts, score(a, t, scratch), a.bias};
    if (routing.num_groups > routing.top_groups)
      drop_groups(scores, static_cast<int32_t>(routing.num_groups),
                  static_cast<int32_t>(routing.top_groups), scratch + num_experts);
    float sum = 0;  // the same in every thread
    for (int64_t j = 0; j < a.top_k; ++j) {
      const Best best = block_best(scores);
      const float weight = scratch[best.id] / scores.divisor;
      sum += weight;
      __syncthreads();  // wait until all threads have read the score
      if (threadIdx.x == 0) {
        a.ids[t * a.top_k + j] = best.id;
        a.weights[t * a.top_k + j] = weight;
        scratch[best.id] = kOut;
      }
      __syncthreads();
    }
    if (threadIdx.x != 0) continue;
    for (int64_t j = 0; j < a.top_k; ++j) {
      float& weight = a.weights[t * a.top_k + j];
      weight = settled(routing, weight, sum);
    }
  }
}

}  // namespace
}  // namespace cuda

Status CudaOps::route(const Matrix& logits, const Routing& routing, const float* correction_bias,
                      int64_t top_k, int32_t* topk_ids, float* topk_weights, Stream stream) {
  MORACLE_CHECK(check_routing(routing, logits.cols, correction_bias != nullptr, top_k));
  MORACLE_CHECK(cuda::check_floats({&logits}));
  const cuda::RouteArgs args{logits, routing, correction_bias, top_k, topk_ids, topk_weights};
  if (routing.score == Score::kSparseMixer)
    return cuda::launch_early(queue_, stream, "route", cuda::mix_sparsely, logits.rows, 32, 0,
                              logits, routing, topk_ids, topk_weights);
  if (cuda::routes_in_warps(logits.cols, routing, top_k))
    return cuda::launch_early(
        queue_, stream, "route",
        logits.cols <= 32 * cuda::kNarrowExpertsPerLane
            ? cuda::route_by_warps<cuda::kNarrowExpertsPerLane>
            : cuda::route_by_warps<cuda::kMostExpertsPerLane>,
        (logits.rows + cuda::kRouteThreads / 32 - 1) / (cuda::kRouteThreads / 32),
        cuda::kRouteThreads, 0, args);
  constexpr int64_t kMost = 10'000;  // scores and ranks fit into 48 KiB, which every GPU has
  const int64_t floats = logits.cols + routing.num_groups;
  if (floats > kMost)
    return Error{ErrorKind::kUnsupported, "", "router",
                 str("at most ", kMost, " experts and groups on cuda"), str("there are ", floats)};
  return cuda::launch_early(queue_, stream, "route", cuda::route, logits.rows, cuda::kRouteThreads,
                            static_cast<size_t>(floats) * sizeof(float), args);
}

}  // namespace moracle
