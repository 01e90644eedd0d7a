// Memory of one GPU: from the engine's allocator, or from CUDA.
#pragma once

#include "kernels/device/engine_memory.h"

namespace moracle::cuda {

class DeviceMemory {
 public:
  DeviceMemory(int index, const DeviceOptions& options) : index_(index), engine_(options) {}
  /// Memory with any content. Several threads may call it at once. Errors: kOutOfMemory, with the
  /// free bytes.
  Result<Buffer> take(size_t bytes) const;
  /// As take(), always an allocation of CUDA's own.
  Result<Buffer> take_of_its_own(size_t bytes) const;

 private:
  int index_;
  EngineMemory engine_;
};

}  // namespace moracle::cuda
