#include "kernels/cuda/cuda_recording.h"

#include "base/text.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_timer.h"

namespace moracle::cuda {
namespace {

class GraphRecording final : public Recording {
 public:
  explicit GraphRecording(CudaDevice& device) : device_(device), index_(device.queue().index) {}
  ~GraphRecording() override {
    if (run_ != nullptr) static_cast<void>(cudaGraphExecDestroy(run_));
    if (graph_ != nullptr) static_cast<void>(cudaGraphDestroy(graph_));
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  }

  Status capture(const std::function<Status(Stream)>& enqueue) {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(index_));
    MORACLE_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    MORACLE_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    const Status enqueued = enqueue({stream_});
    // Ended in any case: a stream that is being captured is of no use to anybody.
    const Status ended = check(cudaStreamEndCapture(stream_, &graph_), "cudaStreamEndCapture");
    MORACLE_CHECK(enqueued);
    MORACLE_CHECK(ended);
    MORACLE_CUDA(cudaGraphInstantiate(&run_, graph_, 0));
    MORACLE_CUDA(cudaGraphUpload(run_, stream_));
    return {};
  }

  Result<std::vector<double>> repeat(int64_t times) override {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(index_));
    while (static_cast<int64_t>(events_.size()) <= times)
      MORACLE_CHECK(events_.emplace_back().open());
    // Each starts while the one before runs: what the host takes for it is not seen. The first one
    // has none before it, and is not counted.
    for (int64_t i = 0; i <= times; ++i) {
      MORACLE_CUDA(cudaGraphLaunch(run_, stream_));
      MORACLE_CUDA(cudaEventRecord(events_[i].get(), stream_));
    }
    MORACLE_CHECK(device_.synchronize({stream_}));
    std::vector<double> seconds;
    for (int64_t i = 0; i < times; ++i) {
      float milliseconds = 0;
      MORACLE_CUDA(cudaEventElapsedTime(&milliseconds, events_[i].get(), events_[i + 1].get()));
      seconds.push_back(static_cast<double>(milliseconds) * 1e-3);
    }
    return seconds;
  }

 private:
  CudaDevice& device_;
  const int index_;
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t run_ = nullptr;
  std::vector<CudaEvent> events_;
};

}  // namespace

Result<std::unique_ptr<Recording>> record(Device& device,
                                          const std::function<Status(Stream)>& enqueue) {
  auto* const gpu = dynamic_cast<CudaDevice*>(&device);
  if (gpu == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "recording", "a cuda device",
                 "it is " + device.name()};
  }
  auto recording = std::make_unique<GraphRecording>(*gpu);
  MORACLE_CHECK(recording->capture(enqueue));
  return std::unique_ptr<Recording>(std::move(recording));
}

}  // namespace moracle::cuda
