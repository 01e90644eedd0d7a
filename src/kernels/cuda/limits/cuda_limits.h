// Measures the peak rates of a GPU.
#pragma once

#include "kernels/limits.h"

namespace moracle::cuda {

/// `device` must be a CudaDevice. `buffer_bytes` 0 means 2 GiB, at most a quarter of the free
/// memory, but at least eight times the L2 cache. Errors: out of memory; a kernel does not start.
Result<std::unique_ptr<LimitsProbe>> open_limits(const std::shared_ptr<Device>& device,
                                                 size_t buffer_bytes);

}  // namespace moracle::cuda
