#include "kernels/cuda/staging/pinned_staging.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/device/cuda_check.h"

namespace moracle::cuda {

PinnedStaging::~PinnedStaging() {
  for (int half = 0; half < 2; ++half) {
    static_cast<void>(cudaFreeHost(halves_[half]));
    if (arrived_[half] != nullptr) static_cast<void>(cudaEventDestroy(arrived_[half]));
  }
}

Status PinnedStaging::open() {
  for (int half = 0; half < 2; ++half) {
    if (halves_[half] == nullptr)
      MORACLE_CUDA(cudaMallocHost(reinterpret_cast<void**>(&halves_[half]), kHalf));
    if (arrived_[half] == nullptr)
      MORACLE_CUDA(cudaEventCreateWithFlags(&arrived_[half], cudaEventDisableTiming));
  }
  return {};
}

Status PinnedStaging::enqueue(void* to, const void* from, size_t bytes, cudaStream_t stream,
                              Watches& watches) {
  if (bytes == 0) return {};
  MORACLE_CHECK(open());
  for (size_t done = 0; done < bytes; done += kHalf) {
    const int half = next_;
    next_ ^= 1;
    const size_t count = std::min(kHalf, bytes - done);
    MORACLE_CHECK(watches.wait(arrived_[half]));
    std::memcpy(halves_[half], static_cast<const std::byte*>(from) + done, count);
    MORACLE_CUDA(cudaMemcpyAsync(static_cast<std::byte*>(to) + done, halves_[half], count,
                                 cudaMemcpyHostToDevice, stream));
    MORACLE_CUDA(cudaEventRecord(arrived_[half], stream));
  }
  return {};
}

}  // namespace moracle::cuda
