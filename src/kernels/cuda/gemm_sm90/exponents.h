// Prepares e4m3 weights with exponents for kernels that do not check for NaN.
#pragma once

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/operands/scaling_plan.h"
#include "kernels/weights/kernel_weights.h"

namespace moracle::cuda {

/// Prepares weights in mxfp8 as they arrive, and again after they are replaced. With `one_per_row`
/// (has_row_exponents) the exponents move into the codes. Otherwise a group that contains NaN gets
/// the exponent of NaN: the outputs of the row are NaN in either case.
class Exponents {
 public:
  Exponents(const KernelWeights& weights, bool one_per_row);

  /// Enqueues the change of the bytes of `weights`.
  Status prepare(const KernelWeights& weights, const Queue& queue, Stream stream) const;

 private:
  int64_t panels_, blocks_, group_blocks_, groups_;
  bool one_per_row_;
};

/// True for weights that need this.
bool has_exponents(const KernelWeights& weights);

}  // namespace moracle::cuda
