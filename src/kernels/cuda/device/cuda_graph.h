// Kernels captured from a stream, to be launched together.
#pragma once

#include "kernels/cuda/device/cuda_queue.h"
#include "moracle/device.h"

namespace moracle::cuda {

/// Implements Device::record. `device` owns `queue`. The caller holds the device's lock. Errors:
/// those of `enqueue`; operations that CUDA does not capture, such as waiting or the first call of
/// a kernel.
Result<std::unique_ptr<Graph>> record(const std::function<Status()>& enqueue, Device& device,
                                      const Queue& queue, Stream stream);

}  // namespace moracle::cuda
