// Recordings as CUDA graphs.
#pragma once

#include "kernels/recording.h"

namespace moracle::cuda {

/// `device` is a CudaDevice.
Result<std::unique_ptr<Recording>> record(Device& device,
                                          const std::function<Status(Stream)>& enqueue);

}  // namespace moracle::cuda
