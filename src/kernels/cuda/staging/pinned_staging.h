// Uploads through pinned memory. From pageable memory, the driver would copy page by page on its
// own thread while the caller waits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/device/cuda_watches.h"
#include "moracle/base.h"

namespace moracle::cuda {

class PinnedStaging {
 public:
  PinnedStaging() = default;
  PinnedStaging(const PinnedStaging&) = delete;
  PinnedStaging& operator=(const PinnedStaging&) = delete;
  ~PinnedStaging();
  /// Enqueues the copy in stream order. The caller may free the source on return. The first call
  /// allocates the pinned memory.
  Status enqueue(void* to, const void* from, size_t bytes, cudaStream_t stream, Watches& watches);

 private:
  Status open();
  static constexpr size_t kHalf = 8 << 20;
  std::byte* halves_[2] = {};  // one is filled while the other is copied
  int next_ = 0;
  cudaEvent_t arrived_[2] = {};
};

}  // namespace moracle::cuda
