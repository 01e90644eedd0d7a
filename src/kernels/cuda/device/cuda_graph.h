// Kernels captured from a stream, to be launched together.
#pragma once

#include "kernels/cuda/device/cuda_queue.h"
#include "moracle/device.h"

namespace moracle::cuda {

/// Device::record; `device` is the one of `queue`, and held by the caller. Errors: enqueue's; what
/// CUDA does not capture, such as waiting or a kernel's first call.
Result<std::unique_ptr<Graph>> record(const std::function<Status()>& enqueue, Device& device,
                                      const Queue& queue, Stream stream);

}  // namespace moracle::cuda
