// How much memory a device of a machine has, before it is opened.
#pragma once

#include "moracle/device.h"

namespace moracle {

/// Bytes; of a GPU that the machine does not have, the CPU's.
inline int64_t memory_of(const Machine& machine, const DeviceName& device) {
  for (const GpuInfo& gpu : machine.gpus) {
    if (gpu.platform == device.platform && gpu.index == device.index) return gpu.memory_bytes;
  }
  return machine.cpu.memory_bytes;
}

}  // namespace moracle
