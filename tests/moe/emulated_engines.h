// Matrix engines of Intel GPUs on OpenCL devices without them, which emulate the instructions.
#pragma once

#include <string>

#include "moracle/oracle.h"

namespace moracle::testing {

inline constexpr GpuFeature kEmulationNeeds =
    GpuFeature::kSharedPointers | GpuFeature::kAtomics64 | GpuFeature::kSubgroups;

/// This machine; its first OpenCL device claims to have matrix engines.
inline Machine machine_with_engines() {
  Machine machine = Machine::here();
  for (GpuInfo& gpu : machine.gpus) {
    if (gpu.platform == Platform::kOpenCl) gpu.features = gpu.features | GpuFeature::kMatrix;
  }
  return machine;
}

/// Why the first OpenCL device cannot emulate matrix engines; empty: it can.
inline std::string lacks_for_engines(const Machine& machine) {
  for (const GpuInfo& gpu : machine.gpus) {
    if (gpu.platform != Platform::kOpenCl) continue;
    const GpuFeature lacking = missing(kEmulationNeeds, gpu.features);
    return lacking == GpuFeature::kNone ? "" : gpu.model + " lacks " + names(lacking);
  }
  return "this machine has no OpenCL device";
}

}  // namespace moracle::testing
