// Skinny GEMM of one matrix.
#pragma once

#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/cuda/gemm_skinny/skinny_args.h"
#include "kernels/grouped_linear.h"

namespace moracle::cuda {

class SkinnyLaunch {
 public:
  /// Loads the kernels, which graph capture could not do. Requires skinny_serves.
  static Result<SkinnyLaunch> make(const KernelWeights& weights, const Queue& queue);

  /// y of each row, at most kMostSkinnyTokens.
  Status run(const KernelWeights& weights, const Rows& x, const Matrix& y, Stream stream) const;

 private:
  SkinnyKernels kernels_{};
  SkinnySplit splits_[2]{};
  const Queue* queue_ = nullptr;
};

}  // namespace moracle::cuda
