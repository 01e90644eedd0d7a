// Timestamps, and the order of streams that share memory.
#pragma once

#include "kernels/kernel_device.h"
#include "kernels/opencl/device/opencl_queue.h"

namespace moracle::opencl {

/// Implements Device::timeline, with profiled events of `stream`. The device's own queue has
/// profiling on.
std::unique_ptr<Timeline> timeline(const Queue& queue, Stream stream);

/// Implements Device::stream_order, with events, so that no host thread waits.
std::shared_ptr<StreamOrder> stream_order(const Queue& queue);

}  // namespace moracle::opencl
