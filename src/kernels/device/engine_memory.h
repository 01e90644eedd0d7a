// Device memory from the engine's allocator (DeviceOptions::allocate).
#pragma once

#include "moracle/device.h"

namespace moracle {

/// Errors: only one of allocate and free; threads of the engine that would have to be pinned.
Status check_engine_options(const DeviceOptions& options);

class EngineMemory {
 public:
  explicit EngineMemory(const DeviceOptions& options)
      : allocate_(options.allocate), free_(options.free) {}
  /// False: the engine gave no allocator.
  explicit operator bool() const { return allocate_ != nullptr; }
  /// Memory with any content. `wait` runs before the memory goes back. Several threads may call it
  /// at once. Errors: kOutOfMemory; memory that is not aligned for every kernel. `device` names the
  /// device in them.
  Result<Buffer> take(size_t bytes, const std::string& device,
                      std::function<void()> wait = {}) const;

 private:
  std::function<void*(size_t bytes)> allocate_;
  std::function<void(void* data, size_t bytes)> free_;
};

}  // namespace moracle
