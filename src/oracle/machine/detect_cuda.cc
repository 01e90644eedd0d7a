#if defined(MORACLE_WITH_CUDA)
#include <cuda_runtime_api.h>

#include "base/text.h"
#include "oracle/machine/detect.h"
#include "oracle/machine/libraries.h"
#if defined(MORACLE_WITH_CUBLASLT)
#include "oracle/machine/cublaslt_api.h"
#endif

namespace moracle {

std::vector<GpuInfo> detect_cuda() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return {};  // no driver: no GPU
  std::vector<GpuInfo> gpus;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    gpus.push_back({Platform::kCuda, i, properties.name, 10 * properties.major + properties.minor,
                    static_cast<int64_t>(properties.totalGlobalMem),
                    static_cast<int64_t>(properties.sharedMemPerBlockOptin)});
  }
  return gpus;
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
