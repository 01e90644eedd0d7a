// Streams that share memory, one after another: by events, so that no thread waits.
#pragma once

#include <functional>
#include <vector>

#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/cuda_queue.h"

namespace moracle::cuda {

/// Device::stream_order. On a stream that is being captured begin and end do nothing: what is
/// enqueued there runs with the graph's replays. A graph of Device::record orders those itself.
class CudaStreamOrder final : public StreamOrder,
                              public std::enable_shared_from_this<CudaStreamOrder> {
 public:
  explicit CudaStreamOrder(const Queue& queue) : queue_(queue) {}
  CudaStreamOrder(const CudaStreamOrder&) = delete;
  CudaStreamOrder& operator=(const CudaStreamOrder&) = delete;
  ~CudaStreamOrder() override;

  Status begin(Stream stream) override;
  void end(Stream stream) override;

 private:
  Status record(cudaStream_t stream);

  const Queue& queue_;  // the device's, which outlives its workspaces
  cudaEvent_t event_ = nullptr;
  enum class Last { kNothing, kOwn, kEvent } last_ = Last::kNothing;
  Status recorded_;  // of the last event, which end() cannot report
};

/// The orders that calls of this thread ask for while `enqueue` runs, each once.
struct RecordedOrders {
  std::vector<std::shared_ptr<CudaStreamOrder>> orders;
  Status collect(const std::function<Status()>& enqueue);
};

}  // namespace moracle::cuda
