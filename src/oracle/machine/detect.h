// Detects the CPU of this machine, and its GPUs through the drivers of this build.
#pragma once

#include <vector>

#include "moracle/oracle.h"

namespace moracle {

/// The CPU of Machine::here(), without loading drivers of GPUs.
CpuInfo detect_cpu();

#if defined(MORACLE_WITH_CUDA)
/// NVIDIA GPUs that the CUDA driver exposes to this process; empty without a driver.
std::vector<GpuInfo> detect_cuda();
/// NVIDIA's libraries that the loader finds. Loads them: call it only if there is a GPU.
Library detect_libraries();
#endif
#if defined(MORACLE_WITH_OPENCL)
/// OpenCL devices of all platforms, including CPUs, in the loader's order.
std::vector<GpuInfo> detect_opencl();
#endif

}  // namespace moracle
