// Target of kernel launches: a GPU and its own stream, the default if the caller names no stream.
#pragma once

#include <cuda_runtime_api.h>

#include "moracle/base.h"
#include "moracle/device.h"

namespace moracle::cuda {

struct Queue {
  int index = 0;
  cudaStream_t own = nullptr;
  int capability = 0;  // 90 for 9.0
  int num_sms = 0;
  bool dependent_launch = false;  // as compiled_with_dependent_launch()

  cudaStream_t of(Stream stream) const {
    return stream.handle != nullptr ? static_cast<cudaStream_t>(stream.handle) : own;
  }
};

/// True if the code that the current GPU runs waits for earlier kernels (ptx/pdl.cuh). A GPU
/// after Hopper runs code that was compiled for 8.0, which does not wait: there a kernel must start
/// after the one before it. Errors: this build has no code for the GPU; those of CUDA.
Result<bool> compiled_with_dependent_launch();

}  // namespace moracle::cuda
