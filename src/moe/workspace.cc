#include "base/try.h"
#include "kernels/kernel_device.h"
#include "moracle/moe.h"

namespace moracle {

Workspace::Workspace(std::shared_ptr<Device> device)
    : device_(std::move(device)), order_(kernel_device(*device_).stream_order()) {}

Status Workspace::reserve(size_t bytes) {
  const DeviceLock lock = device_->lock();
  if (bytes <= buffer_.bytes()) return {};
  const size_t before = buffer_.bytes();
  // Free before allocating, because both buffers need not fit at once. A graph's memory stays.
  const bool of_graph = order_ != nullptr && order_->captured();
  if (!of_graph) buffer_ = Buffer();
  Result<Buffer> more = device_->allocate(bytes);
  if (!more) {
    if (of_graph) return std::move(more).error();
    // Existing layers still need the previous size.
    if (Result<Buffer> again = device_->allocate(before)) buffer_ = *std::move(again);
    return std::move(more).error();
  }
  if (of_graph) of_graphs_.push_back(std::move(buffer_));
  buffer_ = *std::move(more);
  return {};
}

}  // namespace moracle
