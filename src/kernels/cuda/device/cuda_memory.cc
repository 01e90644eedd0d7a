#include "kernels/cuda/device/cuda_memory.h"

#include "base/text.h"
#include "kernels/cuda/device/cuda_check.h"

namespace moracle::cuda {

Result<Buffer> DeviceMemory::take(size_t bytes) const {
  if (!engine_) return take_of_its_own(bytes);
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(index_));
  // cudaFree waits for kernels that use the memory; allocators of engines do not.
  return engine_.take(bytes, str("cuda:", index_), [index = index_] {
    const auto current = CurrentDevice::enter(index);
    static_cast<void>(cudaDeviceSynchronize());
  });
}

Result<Buffer> DeviceMemory::take_of_its_own(size_t bytes) const {
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(index_));
  void* data = nullptr;
  if (Status taken = check(cudaMalloc(&data, bytes), "cudaMalloc"); !taken) {
    Error error = std::move(taken).error();
    if (error.kind != ErrorKind::kOutOfMemory) return error;
    size_t free = 0, total = 0;
    MORACLE_CUDA(cudaMemGetInfo(&free, &total));
    return Error{ErrorKind::kOutOfMemory, "", str("cuda:", index_), str(bytes, " bytes of memory"),
                 str(free, " of ", total, " bytes are free")};
  }
  return Buffer(data, bytes,
                std::shared_ptr<void>(data, [](void* p) { static_cast<void>(cudaFree(p)); }));
}

}  // namespace moracle::cuda
