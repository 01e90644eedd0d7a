#if defined(MORACLE_WITH_CUDA)
#include <cuda_runtime_api.h>

#include "oracle/machine/detect.h"
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

Library detect_libraries() {
#if defined(MORACLE_WITH_CUBLASLT)
  if (cublaslt::api()) return Library::kCublasLt;
#endif
  return Library::kNone;
}

}  // namespace moracle
#endif
