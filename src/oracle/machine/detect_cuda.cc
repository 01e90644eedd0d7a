#if defined(MORACLE_WITH_CUDA)
#include <cuda_runtime_api.h>

#include "base/text.h"
#include "oracle/machine/cuda_driver.h"
#include "oracle/machine/detect.h"
#include "oracle/machine/libraries.h"
#if defined(MORACLE_WITH_CUBLASLT)
#include "oracle/machine/cublaslt_api.h"
#endif

namespace moracle {

void detect_cuda(Machine& machine) {
  int count = 0, driver = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess) {
    static_cast<void>(cudaDriverGetVersion(&driver));  // no driver: succeeds, and gives 0
    if (driver != 0 && code != cudaErrorNoDevice)
      machine.cuda_fault = cuda::no_gpu(driver, CUDART_VERSION, cudaGetErrorString(code));
    return;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    machine.gpus.push_back({Platform::kCuda, i, properties.name,
                            10 * properties.major + properties.minor,
                            static_cast<int64_t>(properties.totalGlobalMem),
                            static_cast<int64_t>(properties.sharedMemPerBlockOptin)});
  }
}

Result<int64_t> free_cuda_memory(int index) {
  int before = 0;
  size_t free = 0, total = 0;
  cudaError_t code = cudaGetDevice(&before);
  if (code == cudaSuccess) code = cudaSetDevice(index);
  if (code == cudaSuccess) code = cudaMemGetInfo(&free, &total);
  static_cast<void>(cudaSetDevice(before));
  if (code == cudaSuccess) return static_cast<int64_t>(free);
  static_cast<void>(cudaGetLastError());  // the error is this call's alone
  return Error{ErrorKind::kIo, "", str("cuda:", index), "the bytes of free memory",
               cudaGetErrorString(code)};
}

Library detect_libraries() {
#if defined(MORACLE_WITH_CUBLASLT)
  const Result<cublaslt::Api>& api = cublaslt::api();
  if (api) {
    const bool blocks =
        cublaslt::kHeadersHaveBlocks && api->cublasLtGetVersion() >= cublaslt::kBlocksVersion;
    return blocks ? Library::kCublasLt | kCublasLtBlocks : Library::kCublasLt;
  }
#endif
  return Library::kNone;
}

}  // namespace moracle
#endif
