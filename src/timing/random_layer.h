// Layers of random weights, made as they are read.
#pragma once

#include "moracle/checkpoint.h"

namespace moracle::timing {

/// One matrix per expert in the spec's scheme, made as it is read: rows drawn from a few hundred
/// random ones, so that gigabytes take no longer than their copying.
DescribedMatrix random_experts(const MatrixShape& shape, const Scheme& scheme, int64_t num_experts,
                               uint64_t seed);
DescribedWeights random_layer(const LayerSpec& spec, uint64_t seed);

}  // namespace moracle::timing
