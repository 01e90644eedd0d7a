// Uploads weights to an OpenCL device. The host packs.
#pragma once

#include "kernels/weights/uploads.h"

namespace moracle::opencl {

/// Returns null if `device` is not an OpenClDevice.
std::unique_ptr<Uploads> open_uploads(Device& device);

}  // namespace moracle::opencl
