// Detects the CPU of this machine, and its GPUs through the drivers of this build.
#pragma once

#include <vector>

#include "moracle/oracle.h"

namespace moracle {

/// The CPU of Machine::here(), without loading drivers of GPUs.
CpuInfo detect_cpu();
/// Bytes of host memory that this process can take now: what the kernel says is available, within
/// the control group's limit. Caches of files count, because the kernel drops them.
int64_t free_host_memory();
/// Bytes of the memory of a GPU of this machine that no process has; all where the platform does
/// not tell. Errors: those of the driver.
Result<int64_t> free_gpu_memory(const GpuInfo& gpu);

#if defined(MORACLE_WITH_CUDA)
/// Adds the NVIDIA GPUs that the CUDA driver exposes to this process, or sets cuda_fault.
void detect_cuda(Machine& machine);
/// Bytes of a GPU's memory that no process has. Errors: those of the driver.
Result<int64_t> free_cuda_memory(int index);
/// NVIDIA's libraries that the loader finds. Loads them: call it only if there is a GPU.
Library detect_libraries();
#endif
#if defined(MORACLE_WITH_OPENCL)
/// OpenCL devices of all platforms, including CPUs, in the loader's order.
std::vector<GpuInfo> detect_opencl();
#endif

}  // namespace moracle
