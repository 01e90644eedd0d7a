// Which kernels serve a matrix, and what one of them is told of a run.
#pragma once

#include "kernels/cuda/mma_args.h"
#include "kernels/grouped_linear.h"

namespace moracle::cuda {

/// Kernels for weights of this shape in this scheme; none: nobody multiplies these types.
MmaKernels mma_kernels_for(const MatrixShape& shape, const Scheme& scheme);

/// The kernel whose tiles suit so many rows, spread over so many experts: how many are there is
/// known to the device alone, so this goes by what there may be.
int mma_choice(MmaKernels kernels, int64_t rows, int64_t experts);

/// `activation`: of what is computed, where `mma_activates`.
MmaArgs mma_args(const KernelWeights& weights, const GroupedRows& rows, const Matrix& y,
                 const ActivationSpec* activation = nullptr);

/// Whether gates and what they multiply fill panels of their own, and are functions of an
/// exponential alone.
bool mma_activates(const MatrixShape& shape, const ActivationSpec& activation);

/// The most tiles that so many rows may make.
int64_t mma_tiles(const MmaKernel& kernel, const MmaArgs& args);

}  // namespace moracle::cuda
