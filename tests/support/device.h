// Opens devices for tests.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "moracle/device.h"

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

}  // namespace moracle::testing
