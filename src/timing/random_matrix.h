// Random weights of one matrix, for layers that are timed and for tests.
#pragma once

#include "moracle/checkpoint.h"

namespace moracle::timing {

/// Makes a matrix of this shape. Every code can occur, and the scales keep values near 1 / sqrt(k).
CanonicalMatrix random_matrix(const MatrixShape& shape, uint64_t seed);
/// Gives the matrix groups of the right size whose columns lie in random order (act-order).
void shuffle_groups(CanonicalMatrix& matrix, uint64_t seed);

}  // namespace moracle::timing
