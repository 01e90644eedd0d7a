#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/cuda_queue.h"

namespace moracle::cuda {
namespace {

__global__ void as_all_kernels() {}

}  // namespace

Result<bool> compiled_with_dependent_launch() {
  cudaFuncAttributes code{};
  MORACLE_CUDA(cudaFuncGetAttributes(&code, as_all_kernels));
  return code.ptxVersion >= 90;
}

}  // namespace moracle::cuda
