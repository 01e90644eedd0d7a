// Cache of OpenCL kernels that the driver compiles at run time.
#pragma once

#include <string>

#include "moracle/model.h"

namespace moracle::cli {

/// $XDG_CACHE_HOME/moracle/opencl, else ~/.cache/…; empty if neither variable is set.
std::string default_kernel_cache();

/// Options that open `device` with this cache. Unless `quiet`, prints each compiled file on stderr.
/// Verbs are quiet with --json.
DeviceOptions device_options(const DeviceName& device, int threads, bool pin, bool quiet);

/// Sets the same cache and output for the device of a model.
void keep_kernels(ModelOptions& options, bool quiet);

}  // namespace moracle::cli
