#include "base/try.h"
#include "moracle/moe.h"

namespace moracle {

Workspace::Workspace(std::shared_ptr<Device> device)
    : device_(std::move(device)), order_(device_->stream_order()) {}

Status Workspace::reserve(size_t bytes) {
  const Turn turn = device_->turn();
  if (bytes <= buffer_.bytes()) return {};
  const size_t before = buffer_.bytes();
  buffer_ = Buffer();  // free before allocating: both buffers need not fit at once
  Result<Buffer> more = device_->allocate(bytes);
  if (!more) {
    // Existing layers still need the previous size.
    if (Result<Buffer> again = device_->allocate(before)) buffer_ = *std::move(again);
    return std::move(more).error();
  }
  buffer_ = *std::move(more);
  return {};
}

}  // namespace moracle
