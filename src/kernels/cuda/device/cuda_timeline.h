// Timeline of a stream, measured with events.
#pragma once

#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/cuda/device/cuda_watches.h"

namespace moracle::cuda {

/// Implements Device::timeline.
std::unique_ptr<Timeline> timeline(const Queue& queue, Stream stream, Watches& watches);

}  // namespace moracle::cuda
