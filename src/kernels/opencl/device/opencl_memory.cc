#include "kernels/opencl/device/opencl_memory.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"

namespace moracle::opencl {

Memory::~Memory() {
  static_cast<void>(queue_.cl->clFinish(queue_.own));
  static_cast<void>(queue_.cl->clReleaseCommandQueue(queue_.own));
  static_cast<void>(queue_.cl->clReleaseContext(queue_.context));
}

Result<Buffer> Memory::allocate(size_t bytes) {
  const Api& cl = *queue_.cl;
  const auto largest = value_of<cl_ulong>(cl, queue_.device, CL_DEVICE_MAX_MEM_ALLOC_SIZE),
             memory = value_of<cl_ulong>(cl, queue_.device, CL_DEVICE_GLOBAL_MEM_SIZE);
  const std::lock_guard lock(mutex_);
  const size_t taken =
      std::accumulate(live_.begin(), live_.end(), size_t{0},
                      [](size_t sum, const auto& one) { return sum + one.second; });
  const size_t whole = whole_units(bytes);
  // A driver on a CPU grants more memory than the machine has, and the system then kills the
  // process.
  const bool fits = bytes <= largest && bytes <= memory - std::min<size_t>(taken, memory);
  void* const data =
      fits ? cl.clSVMAlloc(queue_.context, CL_MEM_READ_WRITE, whole, cl_uint{kUnit}) : nullptr;
  if (data == nullptr) {
    return Error{ErrorKind::kOutOfMemory, "", str("opencl:", queue_.index),
                 str(bytes, " bytes of memory in one allocation"),
                 str("the largest allocation is ", largest, " bytes; ", taken, " of ", memory,
                     " bytes are taken")};
  }
  live_.emplace(data, whole);
  ++changes_;
  return Buffer(data, bytes, std::shared_ptr<void>(data, [self = shared_from_this()](void* p) {
                  self->release(p);
                }));
}

void Memory::release(void* data) {
  const std::lock_guard lock(mutex_);
  // Let kernels that still read the memory finish first, as cudaFree does.
  static_cast<void>(queue_.cl->clFinish(queue_.own));
  queue_.cl->clSVMFree(queue_.context, data);
  live_.erase(data);
  ++changes_;
}

Status Memory::share_all(cl_kernel kernel) {
  const std::lock_guard lock(mutex_);
  int64_t& known = shared_[kernel];
  if (known == changes_) return {};
  std::vector<void*> all;
  for (const auto& [data, bytes] : live_) all.push_back(data);
  MORACLE_OPENCL(queue_.cl->clSetKernelExecInfo(kernel, CL_KERNEL_EXEC_INFO_SVM_PTRS,
                                                all.size() * sizeof(void*), all.data()));
  known = changes_;
  return {};
}

}  // namespace moracle::opencl
