// GPUs of this machine, asked of the drivers that this build was made with.
#pragma once

#include <vector>

#include "moracle/oracle.h"

namespace moracle {

#if defined(MORACLE_WITH_CUDA)
/// NVIDIA GPUs that the CUDA driver shows to this process; none where there is no driver.
std::vector<GpuInfo> detect_cuda();
#endif
#if defined(MORACLE_WITH_OPENCL)
/// OpenCL devices of all platforms, CPUs included, in the order of the loader.
std::vector<GpuInfo> detect_opencl();
#endif

}  // namespace moracle
