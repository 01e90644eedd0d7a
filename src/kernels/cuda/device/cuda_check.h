// Calls to CUDA as values: what failed, and what CUDA says about it.
#pragma once

#include <cuda_runtime_api.h>

#include "base/try.h"
#include "moracle/base.h"

namespace moracle::cuda {

/// Errors: `call`, if `code` is one. kOutOfMemory where memory was refused, else kIo.
Status check(cudaError_t code, const char* call);

/// Right after a launch: whether it was accepted. Errors: the kernel by name. What goes wrong while
/// it runs is an error of the next synchronize, which names the kernel launched last.
Status launched(const char* kernel);
/// Of this thread; nothing before the first.
const char* last_launched();

/// Makes a GPU the thread's current one, and gives back the one that was.
class CurrentDevice {
 public:
  static Result<CurrentDevice> enter(int index);
  CurrentDevice(CurrentDevice&& other) noexcept : before_(other.before_) { other.before_ = -1; }
  CurrentDevice& operator=(CurrentDevice&&) = delete;
  ~CurrentDevice() {
    // Nobody is left to tell; the next call of its owner would fail by itself.
    if (before_ >= 0) static_cast<void>(cudaSetDevice(before_));
  }

 private:
  explicit CurrentDevice(int before) : before_(before) {}
  int before_;  // -1: nothing to give back
};

}  // namespace moracle::cuda

/// Returns the Error of a CUDA call from the enclosing function.
#define MORACLE_CUDA(...) MORACLE_CHECK(::moracle::cuda::check((__VA_ARGS__), #__VA_ARGS__))
