// Packs one expert into weights whose experts replace one another.
#pragma once

#include "kernels/weights/kernel_weights.h"

namespace moracle {

/// Packs expert e of `from` as the local expert `at` of `to`, which the host sees. Kernels may need
/// GroupedLinear::expert_replaced then. Errors: reading.
Status convert_expert(const DescribedMatrix& from, int64_t e, const KernelWeights& to, int64_t at,
                      ThreadPool& pool);

}  // namespace moracle
