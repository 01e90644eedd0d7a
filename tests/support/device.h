// Opens devices for tests.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "moracle/device.h"

namespace moracle::testing {

/// As open_device. Tests of one run share the compiled OpenCL kernels: without that, most of their
/// time on PoCL would go into its compiler.
inline Result<std::shared_ptr<Device>> open_test_device(std::string_view name, int threads = 0) {
  DeviceOptions options;
  options.threads = threads;
  if (const char* const caches = std::getenv("XDG_CACHE_HOME"); caches != nullptr)
    options.kernel_cache = std::string(caches) + "/moracle-test-kernels";
  return open_device(name, options);
}

}  // namespace moracle::testing
