#include "base/text.h"
#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/cuda/device/requirements.h"

namespace moracle::cuda {
namespace {

__global__ void as_all_kernels() {}

}  // namespace

Result<bool> compiled_with_dependent_launch() {
  cudaFuncAttributes code{};
  const cudaError_t found = cudaFuncGetAttributes(&code, as_all_kernels);
  if (found == cudaErrorNoKernelImageForDevice) {
    static_cast<void>(cudaGetLastError());
    std::vector<int> compiled{__CUDA_ARCH_LIST__};  // 800 for 8.0
    for (int& capability : compiled) capability /= 10;
    return Error{ErrorKind::kUnsupported, "", "cuda", "a GPU for which this build has code",
                 str("it has code for compute capability ", capability_list(compiled))};
  }
  MORACLE_CHECK(check(found, "cudaFuncGetAttributes"));
  return code.ptxVersion >= 90;
}

}  // namespace moracle::cuda
