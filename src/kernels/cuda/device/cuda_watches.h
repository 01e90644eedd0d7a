// Ends waits for GPU work that would never end because it waits for another process.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

#include "moracle/base.h"

namespace moracle::cuda {

/// Monitors work that depends on other processes.
class Watch {
 public:
  virtual ~Watch() = default;
  /// Called about once per millisecond while the host waits. Errors: the work cannot end.
  virtual Status look(double waited_seconds) = 0;
  /// Makes kernels that wait for another process end. Does not block.
  virtual void stop() = 0;
};

class Watches {
 public:
  void add(std::weak_ptr<Watch> watch);
  /// Waits for the stream or the event, as long as no watch objects. Errors: the watch's, after the
  /// kernels were stopped; CUDA's.
  Status wait(cudaStream_t stream);
  Status wait(cudaEvent_t event);
  /// As wait(), for a caller that synchronizes afterwards. Returns at once if there is no watch.
  Status guard(cudaStream_t stream);

 private:
  std::vector<std::shared_ptr<Watch>> living();
  // query() is cudaErrorNotReady as long as the work runs.
  template <class Query>
  Status wait_for(const Query& query);
  std::mutex mutex_;
  std::vector<std::weak_ptr<Watch>> all_;
};

}  // namespace moracle::cuda
