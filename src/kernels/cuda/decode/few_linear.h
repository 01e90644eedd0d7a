// Linear layers of few tokens, which stream their weights.
#pragma once

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/grouped_linear.h"

namespace moracle::cuda {

/// Adds the kernel for up to `most_tokens` tokens. It serves rows that 16-byte loads can read, and
/// norms before floats.
Status add_few_linear(GroupedLinear& linear, int64_t most_tokens, CudaDevice& device);

}  // namespace moracle::cuda
