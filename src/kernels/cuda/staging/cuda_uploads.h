// Uploads weights to a GPU through the device's pinned buffers. The GPU packs layouts that have an
// index function there.
#pragma once

#include "kernels/weights/uploads.h"

namespace moracle::cuda {

/// Returns null if `device` is not a CudaDevice.
std::unique_ptr<Uploads> open_uploads(Device& device);

}  // namespace moracle::cuda
