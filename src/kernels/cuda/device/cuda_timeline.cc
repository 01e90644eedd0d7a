#include "kernels/cuda/device/cuda_timeline.h"

#include "kernels/cuda/device/cuda_check.h"

namespace moracle::cuda {
namespace {

class CudaTimeline : public Timeline {
 public:
  CudaTimeline(const Queue& queue, Stream stream, Watches& watches)
      : queue_(queue), stream_(queue.of(stream)), watches_(watches) {}
  ~CudaTimeline() override {
    for (cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
  }

  Status mark() override {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
    if (used_ == events_.size()) {
      cudaEvent_t event = nullptr;
      MORACLE_CUDA(cudaEventCreate(&event));
      events_.push_back(event);
    }
    MORACLE_CUDA(cudaEventRecord(events_[used_], stream_));
    ++used_;
    return {};
  }

  Result<std::vector<double>> take() override {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
    const size_t used = std::exchange(used_, 0);
    std::vector<double> us;
    if (used > 0) MORACLE_CHECK(watches_.wait(events_[used - 1]));
    for (size_t i = 1; i < used; ++i) {
      float milliseconds = 0;
      MORACLE_CUDA(cudaEventElapsedTime(&milliseconds, events_[i - 1], events_[i]));
      us.push_back(1e3 * static_cast<double>(milliseconds));
    }
    return us;
  }

 private:
  const Queue& queue_;  // owned by the device, which outlives its timelines
  cudaStream_t stream_;
  Watches& watches_;  // likewise
  std::vector<cudaEvent_t> events_;
  size_t used_ = 0;
};

}  // namespace

std::unique_ptr<Timeline> timeline(const Queue& queue, Stream stream, Watches& watches) {
  return std::make_unique<CudaTimeline>(queue, stream, watches);
}

}  // namespace moracle::cuda
