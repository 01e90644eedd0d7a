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

/// Adds the kernel for raw rows and for norms, if it reads these weights.
Status add_quantized_rows(GroupedLinear& linear, CudaDevice& device);

}  // namespace moracle::cuda
