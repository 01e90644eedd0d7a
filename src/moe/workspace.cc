#include "base/try.h"
#include "moracle/moe.h"

namespace moracle {

Status Workspace::reserve(size_t bytes) {
  if (bytes <= buffer_.bytes()) return {};
  buffer_ = Buffer();  // first give back, then take: they need not both fit
  MORACLE_TRY(buffer_, device_->allocate(bytes));
  return {};
}

}  // namespace moracle
