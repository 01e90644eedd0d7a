#include "kernels/cuda/device/cuda_check.h"

#include <string_view>

#include "base/text.h"

namespace moracle::cuda {
namespace {

thread_local const char* last_kernel = "";

std::string said(cudaError_t code) {
  return str(cudaGetErrorName(code), ": ", cudaGetErrorString(code));
}

}  // namespace

Status check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());  // clear it: the next launch must not report it again
  const std::string_view text = call;
  const bool memory = code == cudaErrorMemoryAllocation;
  return Error{memory ? ErrorKind::kOutOfMemory : ErrorKind::kIo, "", "cuda",
               str(text.substr(0, text.find('(')), " to succeed"), said(code)};
}

Status launched(const char* kernel) {
  last_kernel = kernel;
  const cudaError_t code = cudaGetLastError();
  if (code == cudaSuccess) return {};
  return Error{ErrorKind::kIo, "", "cuda", str("kernel '", kernel, "' to start"), said(code)};
}

const char* last_launched() {
  return last_kernel;
}

Result<CurrentDevice> CurrentDevice::enter(int index) {
  int before = 0;
  MORACLE_CUDA(cudaGetDevice(&before));
  if (before == index) return CurrentDevice(-1);
  MORACLE_CUDA(cudaSetDevice(index));
  return CurrentDevice(before);
}

}  // namespace moracle::cuda
