#include "kernels/cuda/staging/weight_staging.h"

#include <algorithm>
#include <cstring>

namespace moracle::cuda {

WeightStaging::~WeightStaging() {
  if (copies_ != nullptr) {
    static_cast<void>(cudaStreamSynchronize(copies_));
    static_cast<void>(cudaStreamDestroy(copies_));
  }
  all_.clear();
  for (void* memory : pinned_) static_cast<void>(cudaFreeHost(memory));
}

WeightStaging::Buffer::~Buffer() {
  for (cudaEvent_t event : {arrived, done}) {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  }
}

// The caller holds the lock.
Status WeightStaging::make() {
  if (copies_ == nullptr) MORACLE_CUDA(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
  void* memory = nullptr;
  MORACLE_CUDA(cudaMallocHost(&memory, kMadeAtOnce * kBytes));
  pinned_.push_back(memory);
  for (size_t i = 0; i < kMadeAtOnce; ++i) {
    auto buffer = std::make_unique<Buffer>();
    buffer->host = static_cast<std::byte*>(memory) + i * kBytes;
    constexpr unsigned kFlags = cudaEventDisableTiming | cudaEventBlockingSync;
    MORACLE_CUDA(cudaEventCreateWithFlags(&buffer->arrived, kFlags));
    MORACLE_CUDA(cudaEventCreateWithFlags(&buffer->done, kFlags));
    idle_.push_back(buffer.get());
    all_.push_back(std::move(buffer));
  }
  return {};
}

Result<WeightStaging::Buffer*> WeightStaging::take() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!in_flight_.empty() && cudaEventQuery(in_flight_.front()->done) == cudaSuccess) {
      Buffer* const buffer = in_flight_.front();
      in_flight_.pop_front();
      return buffer;
    }
    static_cast<void>(cudaGetLastError());  // clear "not ready", which is not an error
    if (!idle_.empty()) {
      Buffer* const buffer = idle_.back();
      idle_.pop_back();
      return buffer;
    }
    if (all_.size() + kMadeAtOnce <= kMostBuffers) {
      MORACLE_CHECK(make());
      continue;
    }
    if (!in_flight_.empty()) {
      Buffer* const buffer = in_flight_.front();
      in_flight_.pop_front();
      lock.unlock();
      const Status done = check(cudaEventSynchronize(buffer->done), "cudaEventSynchronize");
      if (done) return buffer;
      give_back(buffer, false);
      return done.error();
    }
    given_back_.wait(lock);
  }
}

void WeightStaging::give_back(Buffer* buffer, bool in_flight) {
  {
    const std::lock_guard lock(mutex_);
    if (in_flight)
      in_flight_.push_back(buffer);
    else
      idle_.push_back(buffer);
  }
  given_back_.notify_one();
}

Status WeightStaging::send(std::byte* to, const std::byte* from, size_t bytes) {
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
  for (size_t at = 0; at < bytes; at += kBytes) {
    const size_t count = std::min(kBytes, bytes - at);
    MORACLE_TRY(Buffer* const buffer, take());
    std::memcpy(buffer->host, from + at, count);
    const Status sent = [&]() -> Status {
      MORACLE_CUDA(cudaMemcpyAsync(to + at, buffer->host, count, cudaMemcpyHostToDevice, copies_));
      return check(cudaEventRecord(buffer->done, copies_), "cudaEventRecord");
    }();
    give_back(buffer, sent.ok());
    MORACLE_CHECK(sent);
  }
  return {};
}

Status WeightStaging::fill_mirror(Buffer& buffer, const std::byte* from, size_t bytes) {
  if (buffer.mirror.bytes() == 0) {
    MORACLE_TRY(buffer.mirror, memory_.take(kBytes));
  }
  std::memcpy(buffer.host, from, bytes);
  MORACLE_CUDA(
      cudaMemcpyAsync(buffer.mirror.data(), buffer.host, bytes, cudaMemcpyHostToDevice, copies_));
  MORACLE_CUDA(cudaEventRecord(buffer.arrived, copies_));
  MORACLE_CUDA(cudaStreamWaitEvent(queue_.own, buffer.arrived, 0));
  return {};
}

Status WeightStaging::finish() {
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
  if (copies_ != nullptr) MORACLE_CUDA(cudaStreamSynchronize(copies_));
  MORACLE_CUDA(cudaStreamSynchronize(queue_.own));
  return {};
}

}  // namespace moracle::cuda
