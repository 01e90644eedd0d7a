// Uploads through host memory that the driver keeps in place (pinned): a GPU then copies at the
// bus's speed, and the caller need not wait.
#pragma once

#include "kernels/opencl/device/opencl_queue.h"

namespace moracle::opencl {

class Staging {
 public:
  explicit Staging(const Queue& queue) : queue_(queue) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();
  /// Enqueues the copy in stream order. The caller may free the source on return. The first call
  /// takes the memory.
  Status enqueue(void* to, const void* from, size_t bytes, Stream stream);

 private:
  Status open();
  static constexpr size_t kSlotBytes = size_t{4} << 20;
  static constexpr int kSlots = 4;  // some are filled while others are copied

  const Queue& queue_;
  cl_mem pinned_ = nullptr;
  std::byte* host_ = nullptr;
  int next_ = 0;
  cl_event copied_[kSlots] = {};
};

}  // namespace moracle::opencl
