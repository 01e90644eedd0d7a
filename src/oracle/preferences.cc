// Exceptions to the table's order, each with its reason.
#include "oracle/preferences.h"

#include <algorithm>

namespace moracle {
namespace {

bool opencl_is_the_cpu(const Request& request, const Machine& machine) {
  bool there = false;
  for (const GpuInfo& gpu : machine.gpus) {
    if (gpu.platform != Platform::kOpenCl) continue;
    if (request.device_index && *request.device_index != gpu.index) continue;
    there = true;
    if (missing(GpuFeature::kCpuCores, gpu.features) != GpuFeature::kNone) return false;
  }
  return there;
}

constexpr Preference kPreferences[] = {
    {"native-code", "cpu", "opencl", opencl_is_the_cpu,
     "the OpenCL device is this machine's own CPU, which native code uses without a driver"},
};

}  // namespace

std::span<const Preference> preferences() {
  return kPreferences;
}

}  // namespace moracle
