// A matrix whose few rows stream its weights; more rows run elsewhere.
#pragma once

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/grouped_linear.h"

namespace moracle::cuda {

/// Wraps `others`, kernels on the same weights. A linear layer of up to
/// `most_tokens` tokens streams its weights; all else runs in `others`.
Result<std::unique_ptr<GroupedLinear>> make_few_linear(std::unique_ptr<GroupedLinear> others,
                                                       int64_t most_tokens, CudaDevice& device);

}  // namespace moracle::cuda
