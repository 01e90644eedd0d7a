// Sparse mixer: both choices of a token, each with a softmax over the logits near its own.
#pragma once

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/ops.h"

namespace moracle::cuda {

/// One warp handles a token. The logits do not change.
__global__ void mix_sparsely(Matrix logits, Routing routing, int32_t* ids, float* weights) {
  pdl_wait();
  pdl_launch_dependents();
  const auto num_experts = static_cast<int>(logits.cols), lane = static_cast<int>(threadIdx.x);
  for (int64_t t = blockIdx.x; t < logits.rows; t += gridDim.x) {
    int first = -1;  // the choice made before
    for (int j = 0; j < 2; ++j) {
      float most = 0;
      int best = -1;  // the lower id of equals; a NaN is never better, but still an expert
      const auto take = [&](float logit, int e) {
        if (e >= 0 && (best < 0 || logit > most || (logit == most && e < best)))
          most = logit, best = e;
      };
      for (int e = lane; e < num_experts; e += 32)
        if (e != first) take(load(logits, t, e), e);
      for (int step = 16; step > 0; step /= 2) {
        const float logit = __shfl_xor_sync(kAllLanes, most, step);
        take(logit, __shfl_xor_sync(kAllLanes, best, step));
      }
      float sum = 0;
      for (int e = lane; e < num_experts; e += 32) {
        const float logit = load(logits, t, e);
        const bool far = (most - logit) / fmaxf(fabsf(logit), most) > 2 * routing.jitter;
        if (e != first && !far) sum += expf(logit - most);
      }
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      if (lane == 0) {
        ids[2 * t + j] = best;
        weights[2 * t + j] = routing.scaling_factor / sum;
      }
      first = best;
    }
  }
}

}  // namespace moracle::cuda
