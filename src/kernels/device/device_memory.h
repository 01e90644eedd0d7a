// The memory size of a machine's device, before the device is opened.
#pragma once

#include "moracle/device.h"

namespace moracle {

/// Bytes; for a GPU that the machine lacks, the CPU's memory.
inline int64_t memory_of(const Machine& machine, const DeviceName& device) {
  for (const GpuInfo& gpu : machine.gpus) {
    if (gpu.platform == device.platform && gpu.index == device.index) return gpu.memory_bytes;
  }
  return machine.cpu.memory_bytes;
}

/// The largest single allocation on the device, in bytes; 0: all of its memory.
inline int64_t max_allocation_of(const Machine& machine, const DeviceName& device) {
  for (const GpuInfo& gpu : machine.gpus) {
    if (gpu.platform == device.platform && gpu.index == device.index)
      return gpu.max_allocation_bytes;
  }
  return 0;
}

}  // namespace moracle
