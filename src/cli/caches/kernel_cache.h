// Kernels that an OpenCL driver compiles at run time: where they are kept, and a line for each.
#pragma once

#include <string>

#include "moracle/model.h"

namespace moracle::cli {

/// $XDG_CACHE_HOME/moracle/opencl, else ~/.cache/…; empty if neither variable is set.
std::string default_kernel_cache();

/// Options that open `device` with this cache. Unless `quiet`, a line on stderr names each file
/// that the driver compiles. Verbs are quiet with --json.
DeviceOptions device_options(const DeviceName& device, int threads, bool pin, bool quiet);

/// Gives the same cache and lines to the device of a model.
void keep_kernels(ModelOptions& options, bool quiet);

}  // namespace moracle::cli
