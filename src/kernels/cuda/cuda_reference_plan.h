// What cuda-reference would do for a matrix: plain C++, so that builds without CUDA plan it, too.
#pragma once

#include "moracle/oracle.h"

namespace moracle::cuda {

/// Whether codes of both sides are multiplied as integers.
bool sums_integers(const MatrixShape& shape, const Scheme& scheme);

/// What its kernel is called in plans.
const char* reference_kernel_name(const MatrixShape& shape, const Scheme& scheme);

}  // namespace moracle::cuda
