// Measures the limits of an OpenCL device: reads and f32 products.
#pragma once

#include "kernels/limits.h"

namespace moracle::opencl {

/// Errors: `device` is not an OpenCL device; memory.
Result<std::unique_ptr<LimitsProbe>> open_limits(const std::shared_ptr<Device>& device,
                                                 size_t buffer_bytes);

}  // namespace moracle::opencl
