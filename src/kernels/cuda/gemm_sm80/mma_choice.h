// Selects the kernels for a matrix, and builds the arguments of a run.
#pragma once

#include "kernels/cuda/gemm_sm80/mma_plan.h"
#include "kernels/cuda/tiles/arguments.h"
#include "kernels/grouped_linear.h"

namespace moracle::cuda {

/// Returns the kernels for weights of this shape in this scheme; none if no kernel multiplies these
/// types.
MmaKernels mma_kernels_for(const MatrixShape& shape, const Scheme& scheme);

/// `activation` is applied to the outputs and requires `mma_activates`; null: none.
MmaArgs mma_args(const KernelWeights& weights, const GroupedRows& rows, const Matrix& y,
                 const ActivationSpec* activation = nullptr);

/// Returns the most tiles that the rows of `args` may make.
int64_t mma_tiles(const MmaKernel& kernel, const MmaArgs& args);

}  // namespace moracle::cuda
