#include "kernels/cuda/staging/cuda_transfers.h"

#include <algorithm>

#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/staging/repack.h"

namespace moracle::cuda {
namespace {

// An event of one GPU, without times.
class Event {
 public:
  Event() = default;
  ~Event() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  Status open() {
    MORACLE_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    return {};
  }
  Status record(cudaStream_t stream) {
    MORACLE_CUDA(cudaEventRecord(event_, stream));
    return {};
  }
  Status wait_on(cudaStream_t stream) const {
    MORACLE_CUDA(cudaStreamWaitEvent(stream, event_));
    return {};
  }
  Result<bool> done() const {
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) return false;
    MORACLE_CUDA(code);
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaTransfers final : public ExpertTransfers {
 public:
  explicit CudaTransfers(CudaDevice& device) : device_(device), queue_(device.queue()) {}
  ~CudaTransfers() override {
    for (cudaStream_t stream : {copies_, packs_}) {
      if (stream == nullptr) continue;
      static_cast<void>(cudaStreamSynchronize(stream));
      static_cast<void>(cudaStreamDestroy(stream));
    }
  }

  Status open(int64_t from_bytes, int64_t to_bytes) {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
    MORACLE_CUDA(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
    MORACLE_CUDA(cudaStreamCreateWithFlags(&packs_, cudaStreamNonBlocking));
    for (Slot& slot : slots_) {
      MORACLE_TRY(slot.bytes, device_.allocate(static_cast<size_t>(from_bytes * kTransferExperts)));
      MORACLE_CHECK(slot.arrived.open());
      MORACLE_CHECK(slot.packed.open());
    }
    MORACLE_TRY(plain_, plain_transfers(device_, to_bytes));
    return {};
  }

  bool in_background(std::span<const ExpertMatrix> matrices) const override {
    return std::all_of(matrices.begin(), matrices.end(), repacks_here);
  }

  Result<int64_t> begin(std::span<const ExpertMatrix> matrices, const Mark& mark,
                        Stream stream) override {
    if (!in_background(matrices)) {
      MORACLE_TRY(const int64_t packed, plain_->begin(matrices, {}, stream));
      static_cast<void>(packed);  // in stream order: complete for all later work
      return begun_;
    }
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
    Slot& slot = slots_[begun_ % kTransferBuffers];
    if (begun_ >= kTransferBuffers) MORACLE_CHECK(slot.packed.wait_on(copies_));
    MORACLE_CHECK(copy(matrices, slot.bytes.as<std::byte>()));
    MORACLE_CHECK(slot.arrived.record(copies_));
    MORACLE_CHECK(slot.arrived.wait_on(packs_));
    if (mark) MORACLE_CHECK(static_cast<const Event*>(mark.get())->wait_on(packs_));
    const size_t count = matrices.size() / 2;
    const size_t first_bytes = matrices.front().from->sections(*matrices.front().from_shape).bytes;
    const std::byte* const from = slot.bytes.as<std::byte>();
    MORACLE_CHECK(repack_here(queue_, matrices.first(count), from, Stream{packs_}));
    MORACLE_CHECK(
        repack_here(queue_, matrices.last(count), from + count * first_bytes, Stream{packs_}));
    MORACLE_CHECK(slot.packed.record(packs_));
    return ++begun_;
  }

  Result<Mark> mark(Stream stream) override {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
    auto event = std::make_shared<Event>();
    MORACLE_CHECK(event->open());
    MORACLE_CHECK(event->record(queue_.of(stream)));
    return Mark(std::move(event));
  }

  // A buffer that serves a later transfer by now may say "not yet" for an earlier one.
  Result<bool> arrived(int64_t number) override {
    if (number <= 0) return true;
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
    return slots_[(number - 1) % kTransferBuffers].packed.done();
  }

  Status wait(int64_t number, Stream stream) override {
    if (number <= 0) return {};
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
    return slots_[(number - 1) % kTransferBuffers].packed.wait_on(queue_.of(stream));
  }

  Status finish() override {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
    MORACLE_CUDA(cudaStreamSynchronize(packs_));
    return {};
  }

 private:
  // Experts that follow one another in host memory go as one copy.
  Status copy(std::span<const ExpertMatrix> matrices, std::byte* to) {
    for (size_t i = 0; i < matrices.size();) {
      const auto bytes = matrices[i].from->sections(*matrices[i].from_shape).bytes;
      const std::byte* const begin = matrices[i].packed;
      size_t all = 0;
      while (i < matrices.size() && matrices[i].packed == begin + all &&
             matrices[i].from->sections(*matrices[i].from_shape).bytes == bytes)
        all += bytes, ++i;
      MORACLE_CUDA(cudaMemcpyAsync(to, begin, all, cudaMemcpyHostToDevice, copies_));
      to += all;
    }
    return {};
  }

  struct Slot {
    Buffer bytes;
    Event arrived, packed;
  };

  CudaDevice& device_;
  const Queue& queue_;
  cudaStream_t copies_ = nullptr, packs_ = nullptr;
  Slot slots_[kTransferBuffers];
  std::unique_ptr<ExpertTransfers> plain_;
  int64_t begun_ = 0;
};

}  // namespace

Result<std::unique_ptr<ExpertTransfers>> open_transfers(CudaDevice& device, int64_t from_bytes,
                                                        int64_t to_bytes) {
  auto transfers = std::make_unique<CudaTransfers>(device);
  MORACLE_CHECK(transfers->open(from_bytes, to_bytes));
  return std::unique_ptr<ExpertTransfers>(std::move(transfers));
}

std::shared_ptr<void> pin(int index, void* data, size_t bytes) {
  if (bytes == 0) return nullptr;
  const Result<CurrentDevice> here = CurrentDevice::enter(index);
  if (!here || cudaHostRegister(data, bytes, cudaHostRegisterPortable) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // the error is this call's alone
    return nullptr;
  }
  return {data, [](void* p) { static_cast<void>(cudaHostUnregister(p)); }};
}

}  // namespace moracle::cuda
