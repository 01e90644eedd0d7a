// Target of kernel launches: a GPU and its own stream, the default if the caller names no stream.
#pragma once

#include <cuda_runtime_api.h>

#include "moracle/device.h"

namespace moracle::cuda {

struct Queue {
  int index = 0;
  cudaStream_t own = nullptr;
  int capability = 0;  // 90 for 9.0
  int multiprocessors = 0;

  cudaStream_t of(Stream stream) const {
    return stream.handle != nullptr ? static_cast<cudaStream_t>(stream.handle) : own;
  }
};

}  // namespace moracle::cuda
