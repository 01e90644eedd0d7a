// Launches kernels on the device's GPU. An error names the kernel.
#pragma once

#include <algorithm>

#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/cuda_queue.h"

namespace moracle::cuda {

/// Enqueues `kernel` with `blocks` CTAs, at most 2^30. Kernels step over their work by gridDim.x.
/// Does nothing if `blocks` is 0.
template <class... Params, class... Args>
Status launch(const Queue& queue, Stream stream, const char* name, void (*kernel)(Params...),
              int64_t blocks, int threads, size_t shared_bytes, Args... args) {
  if (blocks <= 0) return {};
  constexpr int64_t kMostBlocks = int64_t{1} << 30;
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
  const auto grid = static_cast<unsigned>(std::min(blocks, kMostBlocks));
  kernel<<<grid, static_cast<unsigned>(threads), shared_bytes, queue.of(stream)>>>(args...);
  return launched(name);
}

/// Enqueues a kernel that may start before the previous kernel is complete (ptx/pdl.cuh). The CTAs
/// form clusters of `cluster`; more than 1 need compute capability 9.0. Without `kEarly` it starts
/// after the previous kernel.
template <bool kEarly = true, class... Params, class... Args>
Status launch_clusters(const Queue& queue, Stream stream, const char* name,
                       void (*kernel)(Params...), int64_t blocks, int cluster, int threads,
                       size_t shared_bytes, const Args&... args) {
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
  if (blocks <= 0) return {};
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = kEarly ? 1 : 0;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(blocks, int64_t{1} << 30)));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = queue.of(stream);
  config.attrs = attributes;
  // Clusters need code for 9.0, too.
  if (queue.dependent_launch) config.numAttrs = cluster > 1 ? 2 : 1;
  MORACLE_CUDA(cudaLaunchKernelEx(&config, kernel, args...));
  return launched(name);
}
template <class... Params, class... Args>
Status launch_early(const Queue& queue, Stream stream, const char* name, void (*kernel)(Params...),
                    int64_t blocks, int threads, size_t shared_bytes, const Args&... args) {
  return launch_clusters(queue, stream, name, kernel, blocks, 1, threads, shared_bytes, args...);
}

}  // namespace moracle::cuda
