// Which kernels serve a matrix, and what one of them is told of a run.
#pragma once

#include "kernels/cuda/gemm_sm80/mma_args.h"
#include "kernels/cuda/gemm_sm80/mma_plan.h"
#include "kernels/grouped_linear.h"

namespace moracle::cuda {

/// Kernels for weights of this shape in this scheme; none: nobody multiplies these types.
MmaKernels mma_kernels_for(const MatrixShape& shape, const Scheme& scheme);

/// `activation`: of what is computed, where `mma_activates`.
MmaArgs mma_args(const KernelWeights& weights, const GroupedRows& rows, const Matrix& y,
                 const ActivationSpec* activation = nullptr);

/// The most tiles that so many rows may make.
int64_t mma_tiles(const MmaKernel& kernel, const MmaArgs& args);

}  // namespace moracle::cuda
