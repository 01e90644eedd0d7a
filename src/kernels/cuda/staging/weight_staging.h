// Pinned buffers between host threads and a GPU. One thread fills a buffer while others are copied.
// Copies have their own stream and overlap with the kernels that pack the arrived data.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/cuda_memory.h"
#include "kernels/cuda/device/cuda_queue.h"

namespace moracle::cuda {

class WeightStaging {
 public:
  /// Size of one buffer. There are at most kMostBuffers on the host, and as many on the device if
  /// kernels pack.
  static constexpr size_t kBytes = size_t{2} << 20;
  static constexpr size_t kMostBuffers = 16;
  /// Buffers that are made together: pinning one takes as long as pinning some.
  static constexpr size_t kMadeAtOnce = 4;

  WeightStaging(const Queue& queue, const DeviceMemory& memory) : queue_(queue), memory_(memory) {}
  WeightStaging(const WeightStaging&) = delete;
  WeightStaging& operator=(const WeightStaging&) = delete;
  ~WeightStaging();

  /// Copies any number of bytes to device memory.
  Status send(std::byte* to, const std::byte* from, size_t bytes);
  /// Copies at most kBytes to a buffer on the device, then calls pack(buffer), which enqueues on
  /// the queue's own stream.
  template <class Pack>
  Status send_to_pack(const std::byte* from, size_t bytes, const Pack& pack) {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
    MORACLE_TRY(Buffer* const buffer, take());
    const Status sent = [&]() -> Status {
      MORACLE_CHECK(fill_mirror(*buffer, from, bytes));
      MORACLE_CHECK(pack(buffer->mirror.as<const std::byte>()));
      return check(cudaEventRecord(buffer->done, queue_.own), "cudaEventRecord");
    }();
    give_back(buffer, sent.ok());
    return sent;
  }
  /// Waits for all copies and packing kernels.
  Status finish();

 private:
  struct Buffer {
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer();
    std::byte* host = nullptr;  // part of one of pinned_
    moracle::Buffer mirror;     // same size, on the device; empty until needed
    cudaEvent_t arrived = nullptr;
    cudaEvent_t done = nullptr;  // after this event the buffer may be refilled
  };
  Result<Buffer*> take();
  Status make();
  Status fill_mirror(Buffer& buffer, const std::byte* from, size_t bytes);
  void give_back(Buffer* buffer, bool in_flight);

  const Queue& queue_;
  const DeviceMemory& memory_;
  cudaStream_t copies_ = nullptr;
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<void*> pinned_;  // each holds kMadeAtOnce buffers
  std::vector<std::unique_ptr<Buffer>> all_;
  std::vector<Buffer*> idle_;
  std::deque<Buffer*> in_flight_;  // in the order of completion, or nearly
};

}  // namespace moracle::cuda
