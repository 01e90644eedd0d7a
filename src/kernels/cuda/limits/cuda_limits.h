// What a GPU can do at most.
#pragma once

#include "kernels/limits.h"

namespace moracle::cuda {

/// `device` is a CudaDevice. `buffer_bytes` 0: 2 GiB, no more than a quarter of what is free, in
/// any case eight times the second-level cache. Errors: memory; a kernel that does not start.
Result<std::unique_ptr<LimitsProbe>> open_limits(const std::shared_ptr<Device>& device,
                                                 size_t buffer_bytes);

}  // namespace moracle::cuda
