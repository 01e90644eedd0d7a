#if defined(MORACLE_WITH_NCCL)
#include "parallel/cuda/peer_memory.h"

#include <unistd.h>

#include "base/text.h"
#include "base/try.h"
#include "kernels/cuda/device/cuda_check.h"

namespace moracle {
namespace {

// A rank's memory, as sent to the others.
struct PeerHandle {
  int64_t process = 0;
  int32_t device = 0;
  bool made = false;
  const std::shared_ptr<Buffer>* memory = nullptr;  // for ranks of the same process
  cudaIpcMemHandle_t handle{};
};

// Ranks of one process share addresses once the GPUs reach each other.
Status reach(int device, int other) {
  if (device == other) return {};
  int can = 0;
  MORACLE_CUDA(cudaDeviceCanAccessPeer(&can, device, other));
  if (can == 0)
    return Error{ErrorKind::kUnsupported, "", "exchange 'cuda-peer'", "GPUs that reach each other",
                 str("GPU ", device, " cannot reach the memory of GPU ", other)};
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(other, 0);
  if (enabled != cudaErrorPeerAccessAlreadyEnabled)
    return cuda::check(enabled, "cudaDeviceEnablePeerAccess");
  static_cast<void>(cudaGetLastError());
  return {};
}

Result<std::byte*> open_of_process(const PeerHandle& peer) {
  void* data = nullptr;
  MORACLE_CUDA(cudaIpcOpenMemHandle(&data, peer.handle, cudaIpcMemLazyEnablePeerAccess));
  return static_cast<std::byte*>(data);
}

}  // namespace

Result<PeerMemory> PeerMemory::open(Group& group, CudaDevice& device, size_t bytes) {
  const int index = device.queue().index;
  PeerHandle mine{.process = ::getpid(), .device = index};
  Result<Buffer> own = device.allocate_to_share(bytes);
  Status made = own ? Status() : own.error();
  std::shared_ptr<Buffer> memory_of_own;
  if (made) {
    memory_of_own = std::make_shared<Buffer>(*std::move(own));
    mine.memory = &memory_of_own;
    made = cuda::check(cudaIpcGetMemHandle(&mine.handle, memory_of_own->data()),
                       "cudaIpcGetMemHandle");
  }
  mine.made = made.ok();
  // Every rank gathers, also after an error of its own, or the others would wait for it.
  std::vector<PeerHandle> handles(group.size());
  MORACLE_CHECK(group.all_gather(std::as_bytes(std::span(&mine, 1)),
                                 std::as_writable_bytes(std::span(handles))));
  MORACLE_CHECK(made);
  PeerMemory memory(index);
  Status opened;
  for (int64_t r = 0; r < group.size() && opened; ++r) {
    const PeerHandle& peer = handles[r];
    if (r == group.rank()) {
      memory.kept_.push_back(memory_of_own);
      memory.all_[r] = memory_of_own->as<std::byte>();
    } else if (!peer.made) {
      opened = Error{ErrorKind::kIo, "", str("rank ", r), "memory that others can open",
                     "it has none; its own error says why"};
    } else if (peer.process == mine.process) {
      opened = reach(index, peer.device);
      memory.kept_.push_back(*peer.memory);
      memory.all_[r] = memory.kept_.back()->as<std::byte>();
    } else if (Result<std::byte*> data = open_of_process(peer); data) {
      memory.all_[r] = *data;
      memory.opened_.push_back(*data);
    } else {
      opened = data.error();
    }
  }
  MORACLE_CHECK(opened);
  MORACLE_CHECK(group.barrier());  // other ranks have read `memory_of_own`
  return memory;
}

PeerMemory::~PeerMemory() {
  if (opened_.empty()) return;
  const auto here = cuda::CurrentDevice::enter(device_);
  // Destructor: errors are dropped; the process's end closes them, too.
  for (std::byte* const data : opened_) static_cast<void>(cudaIpcCloseMemHandle(data));
}

}  // namespace moracle
#endif
