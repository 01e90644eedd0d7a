// Uploads through pinned memory: what lies in pageable memory would be copied by the driver's
// thread, page by page, while the caller waits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "moracle/base.h"

namespace moracle::cuda {

class PinnedStaging {
 public:
  PinnedStaging() = default;
  PinnedStaging(const PinnedStaging&) = delete;
  PinnedStaging& operator=(const PinnedStaging&) = delete;
  ~PinnedStaging();
  /// In stream order; the source may go when it returns. The pinned memory is taken at the first
  /// call.
  Status enqueue(void* to, const void* from, size_t bytes, cudaStream_t stream);

 private:
  Status open();
  static constexpr size_t kHalf = 8 << 20;
  std::byte* halves_[2] = {};  // one is filled while the other travels
  int next_ = 0;
  cudaEvent_t arrived_[2] = {};
};

}  // namespace moracle::cuda
