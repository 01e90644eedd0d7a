// Lightning attention on a GPU, token by token.
#pragma once

#include "kernels/cuda/elements.cuh"
#include "kernels/ops.h"

namespace moracle::cuda {

struct LightningArgs {
  Matrix qkv, out;
  const float* decays;
  LightningShape shape;
  Batch batch;
};

/// For heads of at most kMostLightningDim columns and any float types. A token's bits do not depend
/// on the tokens per step.
constexpr int64_t kMostLightningDim = 256;
Status step_lightning(const LightningArgs& args, const Queue& queue, Stream stream);

}  // namespace moracle::cuda
