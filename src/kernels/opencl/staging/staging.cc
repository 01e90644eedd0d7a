#include "kernels/opencl/staging/staging.h"

#include <algorithm>
#include <cstring>

namespace moracle::opencl {

Staging::~Staging() {
  const Api& cl = *queue_.cl;
  for (cl_event event : copied_) {
    if (event == nullptr) continue;
    static_cast<void>(cl.clWaitForEvents(1, &event));
    static_cast<void>(cl.clReleaseEvent(event));
  }
  if (host_ != nullptr) {
    static_cast<void>(cl.clEnqueueUnmapMemObject(queue_.own, pinned_, host_, 0, nullptr, nullptr));
    static_cast<void>(cl.clFinish(queue_.own));
  }
  if (pinned_ != nullptr) static_cast<void>(cl.clReleaseMemObject(pinned_));
}

Status Staging::open() {
  cl_int code = CL_SUCCESS;
  if (pinned_ == nullptr) {
    pinned_ = queue_.cl->clCreateBuffer(queue_.context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR,
                                        kSlots * kSlotBytes, nullptr, &code);
    MORACLE_CHECK(check(code, "clCreateBuffer"));
  }
  host_ = static_cast<std::byte*>(
      queue_.cl->clEnqueueMapBuffer(queue_.own, pinned_, CL_TRUE, CL_MAP_WRITE, 0,
                                    kSlots * kSlotBytes, 0, nullptr, nullptr, &code));
  return check(code, "clEnqueueMapBuffer");
}

Status Staging::enqueue(void* to, const void* from, size_t bytes, Stream stream) {
  if (host_ == nullptr) MORACLE_CHECK(open());
  const Api& cl = *queue_.cl;
  for (size_t done = 0; done < bytes;) {
    const size_t count = std::min(kSlotBytes, bytes - done);
    cl_event& copied = copied_[next_];
    std::byte* const slot = host_ + static_cast<size_t>(next_) * kSlotBytes;
    if (copied != nullptr) {
      MORACLE_OPENCL(cl.clWaitForEvents(1, &copied));
      MORACLE_OPENCL(cl.clReleaseEvent(copied));
      copied = nullptr;
    }
    std::memcpy(slot, static_cast<const std::byte*>(from) + done, count);
    MORACLE_OPENCL(cl.clEnqueueSVMMemcpy(queue_.of(stream), CL_FALSE,
                                         static_cast<std::byte*>(to) + done, slot, count, 0,
                                         nullptr, &copied));
    MORACLE_OPENCL(cl.clFlush(queue_.of(stream)));
    next_ = (next_ + 1) % kSlots;
    done += count;
  }
  return {};
}

}  // namespace moracle::opencl
