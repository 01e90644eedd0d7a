// Grouped GEMMs on matrix engines of Intel GPUs (matrix.cl), for both layouts that it reads. The
// kernel is compiled for few and for many activation rows; both sum in the same order, so results
// are always deterministic.
#pragma once

#include "kernels/grouped_linear.h"
#include "oracle/kernel_plan.h"

namespace moracle::opencl {

/// How a layout stores weights.
struct MatrixForm {
  OpenClForm kernel;  ///< in the plan
  const char* backend;
  const char* weight_option;  ///< "-D WEIGHT_I4"
  int64_t scale_row;          ///< distance of the scales of two rows, or of two blocks of rows
  int64_t scale_group;        ///< distance of the scales of two groups
  int64_t block_rows = 1;     ///< rows that share a scale
};

Result<std::unique_ptr<GroupedLinear>> make_matrix_linear(KernelWeights&& weights,
                                                          const MatrixForm& form, Device& device);

}  // namespace moracle::opencl
