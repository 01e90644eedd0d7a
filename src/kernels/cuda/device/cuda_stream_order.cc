#include "kernels/cuda/device/cuda_stream_order.h"

#include <algorithm>

#include "base/out_of_memory.h"

namespace moracle::cuda {
namespace {

thread_local RecordedOrders* recording = nullptr;

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  // Ignore an error here: the next call uses the same stream and reports it.
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

}  // namespace

CudaStreamOrder::~CudaStreamOrder() {
  if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
}

Status CudaStreamOrder::record(cudaStream_t stream) {
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
  if (event_ == nullptr) MORACLE_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  return check(cudaEventRecord(event_, stream), "cudaEventRecord");
}

Status CudaStreamOrder::begin(Stream stream) {
  const cudaStream_t to = queue_.of(stream);
  if (recording != nullptr) {
    auto& orders = recording->orders;
    const auto self = shared_from_this();
    if (std::find(orders.begin(), orders.end(), self) == orders.end()) orders.push_back(self);
  }
  // Fast path: nothing has run yet, or all work is on the device's own stream.
  if (last_ == Last::kNothing || (last_ == Last::kOwn && to == queue_.own)) return {};
  if (is_captured(to)) return {};
  if (last_ == Last::kOwn) {
    MORACLE_CHECK(record(queue_.own));
  } else {
    MORACLE_CHECK(recorded_);
  }
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
  MORACLE_CUDA(cudaStreamWaitEvent(to, event_, 0));
  return {};
}

void CudaStreamOrder::end(Stream stream) {
  const cudaStream_t of = queue_.of(stream);
  if (is_captured(of)) {
    captured_ = true;
    return;
  }
  if (of == queue_.own) {
    last_ = Last::kOwn;
    return;
  }
  // Record now: the caller may have destroyed this stream before another stream begins.
  recorded_ = record(of);
  last_ = Last::kEvent;
}

Status RecordedOrders::collect(const std::function<Status()>& enqueue) {
  RecordedOrders* const before = std::exchange(recording, this);
  Status done = or_out_of_memory("graph", enqueue);
  recording = before;
  return done;
}

}  // namespace moracle::cuda
