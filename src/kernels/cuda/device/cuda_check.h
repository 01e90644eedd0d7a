// Turns results of CUDA calls into Status: the call that failed, and the message of CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include "base/try.h"
#include "moracle/base.h"

namespace moracle::cuda {

/// Errors: names `call` if `code` is an error. kOutOfMemory if an allocation failed, else kIo.
Status check(cudaError_t code, const char* call);

/// Checks whether a launch was accepted; call it right after the launch. Errors: names the kernel.
/// The next synchronize reports errors of the running kernel and names the kernel launched last.
Status launched(const char* kernel);
/// Name of the kernel that this thread launched last; empty before the first launch.
const char* last_launched();

/// Makes a GPU current for this thread and restores the previous one at the end of the scope.
class CurrentDevice {
 public:
  static Result<CurrentDevice> enter(int index);
  CurrentDevice(CurrentDevice&& other) noexcept : before_(other.before_) { other.before_ = -1; }
  CurrentDevice& operator=(CurrentDevice&&) = delete;
  ~CurrentDevice() {
    // Destructor: the error is dropped; the owner's next CUDA call would fail by itself.
    if (before_ >= 0) static_cast<void>(cudaSetDevice(before_));
  }

 private:
  explicit CurrentDevice(int before) : before_(before) {}
  int before_;  // -1: nothing to restore
};

}  // namespace moracle::cuda

/// Returns the Error of a CUDA call from the enclosing function.
#define MORACLE_CUDA(...) MORACLE_CHECK(::moracle::cuda::check((__VA_ARGS__), #__VA_ARGS__))
