// Stopwatch that uses the GPU's own clock.
#pragma once

#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/cuda_queue.h"

namespace moracle::cuda {

/// Owns a CUDA event.
class CudaEvent {
 public:
  CudaEvent() = default;
  CudaEvent(CudaEvent&& other) noexcept : event_(other.event_) { other.event_ = nullptr; }
  CudaEvent& operator=(CudaEvent&&) = delete;
  ~CudaEvent() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }
  /// Creates the event on the current device.
  Status open() { return check(cudaEventCreate(&event_), "cudaEventCreate"); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaTimer {
 public:
  Status open(const Queue& queue) {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
    MORACLE_CHECK(begin_.open());
    return end_.open();
  }
  /// Returns the time of the work that `enqueue` puts on the queue's own stream.
  template <class Enqueue>
  Result<double> seconds(const Queue& queue, const Enqueue& enqueue) {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
    MORACLE_CUDA(cudaEventRecord(begin_.get(), queue.own));
    MORACLE_CHECK(enqueue());
    MORACLE_CUDA(cudaEventRecord(end_.get(), queue.own));
    MORACLE_CUDA(cudaEventSynchronize(end_.get()));
    float milliseconds = 0;
    MORACLE_CUDA(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  CudaEvent begin_, end_;
};

}  // namespace moracle::cuda
