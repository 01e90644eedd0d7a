// Requirements of this library on an OpenCL device.
#pragma once

#include <span>

#include "moracle/base.h"
#include "moracle/oracle.h"

namespace moracle::opencl {

/// Checks device `index` of the devices `there`. Errors: kUnsupported if there is no such device,
/// or if it lacks a feature that every kernel uses: shared pointers and 64-bit atomics.
Status check_requirements(int index, std::span<const GpuInfo> there);

}  // namespace moracle::opencl
