// Orders streams that share memory. Uses events, so that no host thread waits.
#pragma once

#include <functional>
#include <vector>

#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/kernel_device.h"

namespace moracle::cuda {

/// Implements Device::stream_order. begin and end do nothing on a stream that is being captured:
/// the enqueued work runs with the replays of the graph. A graph of Device::record orders its
/// replays itself.
class CudaStreamOrder final : public StreamOrder,
                              public std::enable_shared_from_this<CudaStreamOrder> {
 public:
  explicit CudaStreamOrder(const Queue& queue) : queue_(queue) {}
  CudaStreamOrder(const CudaStreamOrder&) = delete;
  CudaStreamOrder& operator=(const CudaStreamOrder&) = delete;
  ~CudaStreamOrder() override;

  Status begin(Stream stream) override;
  void end(Stream stream) override;
  bool captured() const override { return captured_; }

 private:
  Status record(cudaStream_t stream);

  const Queue& queue_;  // owned by the device, which outlives its workspaces
  cudaEvent_t event_ = nullptr;
  enum class Last { kNothing, kOwn, kEvent } last_ = Last::kNothing;
  bool captured_ = false;
  Status recorded_;  // status of the last event record, which end() cannot return
};

/// Collects the orders that calls of this thread begin while `enqueue` runs, each once.
struct RecordedOrders {
  std::vector<std::shared_ptr<CudaStreamOrder>> orders;
  Status collect(const std::function<Status()>& enqueue);
};

}  // namespace moracle::cuda
