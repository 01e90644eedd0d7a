// Pinned buffers between the host's threads and a GPU: each is filled by one thread, then travels
// while others are filled. Copies have a stream of their own, beside the kernels that pack what has
// arrived.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/cuda_queue.h"

namespace moracle::cuda {

class WeightStaging {
 public:
  /// Of one buffer; there are at most kMostBuffers here, and where kernels pack as many there.
  static constexpr size_t kBytes = size_t{2} << 20;
  static constexpr size_t kMostBuffers = 16;
  /// That are made together: pinning takes as long for one as for some.
  static constexpr size_t kMadeAtOnce = 4;

  explicit WeightStaging(const Queue& queue) : queue_(queue) {}
  WeightStaging(const WeightStaging&) = delete;
  WeightStaging& operator=(const WeightStaging&) = delete;
  ~WeightStaging();

  /// Any number of bytes to the device's memory.
  Status send(std::byte* to, const std::byte* from, size_t bytes);
  /// At most kBytes to a buffer on the device, then pack(buffer), which enqueues on the queue's own
  /// stream.
  template <class Pack>
  Status send_to_pack(const std::byte* from, size_t bytes, const Pack& pack) {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
    MORACLE_TRY(Buffer* const buffer, take());
    const Status sent = [&]() -> Status {
      MORACLE_CHECK(fill_mirror(*buffer, from, bytes));
      MORACLE_CHECK(pack(static_cast<const std::byte*>(buffer->mirror)));
      return check(cudaEventRecord(buffer->done, queue_.own), "cudaEventRecord");
    }();
    give_back(buffer, sent.ok());
    return sent;
  }
  /// Waits for all that was sent and packed.
  Status finish();

 private:
  struct Buffer {
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer();
    std::byte* host = nullptr;    // of one of pinned_
    std::byte* mirror = nullptr;  // the same size on the device; null until it is needed
    cudaEvent_t arrived = nullptr;
    cudaEvent_t done = nullptr;  // then it may be filled again
  };
  Result<Buffer*> take();
  Status make();
  Status fill_mirror(Buffer& buffer, const std::byte* from, size_t bytes);
  void give_back(Buffer* buffer, bool in_flight);

  const Queue& queue_;
  cudaStream_t copies_ = nullptr;
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<void*> pinned_;  // each the host memory of kMadeAtOnce buffers
  std::vector<std::unique_ptr<Buffer>> all_;
  std::vector<Buffer*> idle_;
  std::deque<Buffer*> in_flight_;  // the first is done first, or nearly
};

}  // namespace moracle::cuda
