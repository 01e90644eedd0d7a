// Selects the kernels for a matrix.
#pragma once

#include "kernels/cuda/gemm_sm80/mma_kernels.h"
#include "kernels/cuda/gemm_sm80/mma_plan.h"

namespace moracle::cuda {

/// Returns the kernels for weights of this shape in this scheme; none if no kernel multiplies these
/// types.
MmaKernels mma_kernels_for(const MatrixShape& shape, const Scheme& scheme);

}  // namespace moracle::cuda
