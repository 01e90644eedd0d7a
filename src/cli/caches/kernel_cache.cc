#include "caches/kernel_cache.h"

#include <unistd.h>

#include <iostream>
#include <set>

#include "base/printable.h"
#include "base/text.h"
#include "caches/tuning_cache.h"

namespace moracle::cli {
namespace {

// Print a file once: the driver compiles it once per variant.
class Lines {
 public:
  explicit Lines(std::string device) : device_(std::move(device)) {}
  void operator()(std::string_view file) {
    if (!shown_.emplace(file).second) return;
    // Clear a progress bar first.
    const char* const clear = ::isatty(STDERR_FILENO) == 1 ? "\r\033[K" : "";
    std::cerr << clear << printable(str("compiling kernels for ", device_, ": ", file)) << "\n"
              << std::flush;
  }

 private:
  std::string device_;
  std::set<std::string, std::less<>> shown_;
};

}  // namespace

std::string default_kernel_cache() {
  const std::string folder = cache_folder();
  return folder.empty() ? "" : folder + "/opencl";
}

DeviceOptions device_options(const DeviceName& device, int threads, bool pin, bool quiet) {
  DeviceOptions options{.threads = threads, .pin = pin};
  if (device.platform != Platform::kOpenCl) return options;
  options.kernel_cache = default_kernel_cache();
  if (!quiet) options.compiling = Lines(name(device));
  return options;
}

void keep_kernels(ModelOptions& options, bool quiet) {
  DeviceOptions opened = device_options(options.device, options.threads, options.pin, quiet);
  options.kernel_cache = std::move(opened.kernel_cache);
  options.compiling = std::move(opened.compiling);
}

}  // namespace moracle::cli
