#include "kernels/cuda/weight_staging.h"

#include <algorithm>
#include <cstring>

namespace moracle::cuda {

WeightStaging::~WeightStaging() {
  if (copies_ != nullptr) {
    static_cast<void>(cudaStreamSynchronize(copies_));
    static_cast<void>(cudaStreamDestroy(copies_));
  }
  for (const auto& buffer : all_) {
    static_cast<void>(cudaFreeHost(buffer->host));
    static_cast<void>(cudaFree(buffer->mirror));
    for (cudaEvent_t event : {buffer->arrived, buffer->done}) {
      if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
    }
  }
}

// With the lock held.
Result<WeightStaging::Buffer*> WeightStaging::make() {
  if (copies_ == nullptr) MORACLE_CUDA(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
  // Known from here on: what it has is given back with the others, whatever fails.
  Buffer& buffer = *all_.emplace_back(std::make_unique<Buffer>());
  const Status made = [&]() -> Status {
    MORACLE_CUDA(cudaMallocHost(reinterpret_cast<void**>(&buffer.host), kBytes));
    constexpr unsigned kFlags = cudaEventDisableTiming | cudaEventBlockingSync;
    MORACLE_CUDA(cudaEventCreateWithFlags(&buffer.arrived, kFlags));
    MORACLE_CUDA(cudaEventCreateWithFlags(&buffer.done, kFlags));
    return {};
  }();
  if (made) return &buffer;
  static_cast<void>(cudaFreeHost(buffer.host));
  if (buffer.arrived != nullptr) static_cast<void>(cudaEventDestroy(buffer.arrived));
  all_.pop_back();
  return made.error();
}

Result<WeightStaging::Buffer*> WeightStaging::take() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!in_flight_.empty() && cudaEventQuery(in_flight_.front()->done) == cudaSuccess) {
      Buffer* const buffer = in_flight_.front();
      in_flight_.pop_front();
      return buffer;
    }
    static_cast<void>(cudaGetLastError());  // "not ready" is no error
    if (!idle_.empty()) {
      Buffer* const buffer = idle_.back();
      idle_.pop_back();
      return buffer;
    }
    if (all_.size() < kMostBuffers) return make();
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
  if (buffer.mirror == nullptr)
    MORACLE_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer.mirror), kBytes));
  std::memcpy(buffer.host, from, bytes);
  MORACLE_CUDA(cudaMemcpyAsync(buffer.mirror, buffer.host, bytes, cudaMemcpyHostToDevice, copies_));
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
