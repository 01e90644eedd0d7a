// A linear layer whose many rows run on wgmma.
#pragma once

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/grouped_linear.h"

namespace moracle::cuda {

/// Wraps `others`, kernels on the same weights. run_dense multiplies on wgmma; rows that vectors of
/// 16 bytes cannot read, and run, go to `others`. Requires wgmma_tiles, but not wgmma_rounds.
Result<std::unique_ptr<GroupedLinear>> make_wgmma_dense(std::unique_ptr<GroupedLinear> others,
                                                        CudaDevice& device);

}  // namespace moracle::cuda
