// Layers of random weights, generated when they are read.
#pragma once

#include "moracle/checkpoint.h"

namespace moracle::timing {

/// One matrix per expert in the spec's scheme, generated when it is read. Rows are drawn from a few
/// hundred random ones, so gigabytes take no longer than a copy.
DescribedMatrix random_experts(const MatrixShape& shape, const Scheme& scheme, int64_t num_experts,
                               uint64_t seed);
DescribedWeights random_layer(const LayerSpec& spec, uint64_t seed);

}  // namespace moracle::timing
