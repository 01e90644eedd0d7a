#include "base/try.h"
#include "moracle/moe.h"

namespace moracle {

Workspace::Workspace(std::shared_ptr<Device> device)
    : device_(std::move(device)), order_(device_->stream_order()) {}

Status Workspace::reserve(size_t bytes) {
  const Turn turn = device_->turn();
  if (bytes <= buffer_.bytes()) return {};
  const size_t before = buffer_.bytes();
  buffer_ = Buffer();  // first give back, then take: they need not both fit
  Result<Buffer> more = device_->allocate(bytes);
  if (!more) {
    // Layers that are made already still need what they had.
    if (Result<Buffer> again = device_->allocate(before)) buffer_ = *std::move(again);
    return std::move(more).error();
  }
  buffer_ = *std::move(more);
  return {};
}

}  // namespace moracle
