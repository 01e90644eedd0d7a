// A linear layer of 8-bit weights and activations for few tokens in one kernel: the norm before it,
// if there is one, the quantization of its input, and the products.
#pragma once

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/grouped_linear.h"

namespace moracle::cuda {

/// Most tokens of such a layer: each block normalizes and quantizes all of them.
inline constexpr int64_t kMostQuantizedRows = 4;
/// Most columns.
inline constexpr int64_t kMostQuantizedCols = 4096;

/// Wraps `others`, kernels on the same weights: those of few_linear. Returns `others` itself if no
/// kernel here reads its weights.
Result<std::unique_ptr<GroupedLinear>> make_quantized_rows(std::unique_ptr<GroupedLinear> others,
                                                           CudaDevice& device);

}  // namespace moracle::cuda
