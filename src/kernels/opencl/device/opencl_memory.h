// The memory of one device: shared virtual memory (SVM), whose pointers are valid on the host and
// in kernels. So the library treats device pointers alike on every platform.
#pragma once

#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "kernels/opencl/device/opencl_queue.h"

namespace moracle::opencl {

class Memory : public std::enable_shared_from_this<Memory> {
 public:
  /// Takes over the queue's context and own command queue: buffers may outlive the device.
  explicit Memory(const Queue& queue) : queue_(queue) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  /// Allocations are multiples of this. It is also the largest alignment that OpenCL grants: that
  /// of a long16.
  static constexpr size_t kUnit = 128;
  static constexpr size_t whole_units(size_t bytes) {
    return (bytes / kUnit + (bytes % kUnit != 0)) * kUnit;
  }

  /// Memory of whole_units(bytes) with undefined content. Errors: kOutOfMemory, with the device's
  /// largest allocation and its memory.
  Result<Buffer> allocate(size_t bytes);

  /// Tells the driver that `kernel` follows pointers in device memory: every allocation must stay
  /// resident.
  Status share_all(cl_kernel kernel);

 private:
  void release(void* data);

  const Queue queue_;
  std::mutex mutex_;
  std::map<void*, size_t> live_;
  int64_t changes_ = 0;
  std::unordered_map<cl_kernel, int64_t> shared_;  // value of changes_ that the kernel knows
};

}  // namespace moracle::opencl
