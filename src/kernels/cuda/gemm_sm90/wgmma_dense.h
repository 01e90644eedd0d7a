// A linear layer whose many rows run on wgmma.
#pragma once

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/grouped_linear.h"

namespace moracle::cuda {

/// Adds a kernel on wgmma for raw rows, from `tokens` tokens on, that vectors of 16 bytes can read.
/// Requires wgmma_tiles, but not wgmma_rounds.
Status add_wgmma_dense(GroupedLinear& linear, int64_t tokens, CudaDevice& device);

}  // namespace moracle::cuda
