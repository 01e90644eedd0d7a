// Opens devices for tests.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "moracle/device.h"
#include "moracle/oracle.h"
#include "oracle/backend.h"

namespace moracle::testing {

/// The OpenCL device of the tests. MORACLE_TEST_OPENCL names another one than the first.
inline std::string opencl_name() {
  const char* const name = std::getenv("MORACLE_TEST_OPENCL");
  return name != nullptr && *name != '\0' ? name : "opencl";
}

/// As open_device; "opencl" is that of opencl_name(). Tests of one run share the compiled OpenCL
/// kernels: without that, most of their time on PoCL would go into its compiler.
inline Result<std::shared_ptr<Device>> open_test_device(std::string_view name, int threads = 0) {
  DeviceOptions options;
  options.threads = threads;
  if (const char* const caches = std::getenv("XDG_CACHE_HOME"); caches != nullptr)
    options.kernel_cache = std::string(caches) + "/moracle-test-kernels";
  return open_device(name == "opencl" ? opencl_name() : std::string(name), options);
}

/// Whether the machine's CPU, or the device if it is a GPU, has what a row's kernels need.
inline bool has_needs_of(const Backend& row, const DeviceName& device, const Machine& machine) {
  if (row.platform != device.platform || missing(row.isa, machine.cpu.isa) != Isa::kNone)
    return false;
  for (const GpuInfo& gpu : machine.gpus) {
    if (gpu.platform == device.platform && gpu.index == device.index)
      return missing(row.gpu_features, gpu.features) == GpuFeature::kNone;
  }
  return device.platform == Platform::kCpu;
}

}  // namespace moracle::testing
