// Weights to a GPU: through the device's pinned buffers, packed there where a layout has its index
// function on it.
#pragma once

#include "kernels/uploads.h"

namespace moracle::cuda {

/// Null: it is no CudaDevice.
std::unique_ptr<Uploads> open_uploads(Device& device);

}  // namespace moracle::cuda
