#include "kernels/opencl/device/opencl_errors.h"

#include "kernels/opencl/device/opencl_memory.h"

namespace moracle::opencl {

Status DeviceErrors::open(const Queue& queue) {
  MORACLE_TRY(cells_, queue.memory->allocate(kDeviceErrorCells * sizeof(DeviceErrorCell)));
  return reset(queue, {}, kDeviceErrorCells);
}

Status DeviceErrors::reset(const Queue& queue, Stream stream, int count) {
  const std::vector<DeviceErrorCell> empty(count);
  return check(queue.cl->clEnqueueSVMMemcpy(queue.of(stream), CL_TRUE, cells_.data(), empty.data(),
                                            count * sizeof(DeviceErrorCell), 0, nullptr, nullptr),
               "clEnqueueSVMMemcpy");
}

Status DeviceErrors::take(const Queue& queue, Stream stream) {
  const int count = num_error_cells(scopes_);
  found_.resize(count);
  MORACLE_OPENCL(queue.cl->clEnqueueSVMMemcpy(queue.of(stream), CL_TRUE, found_.data(),
                                              cells_.data(), count * sizeof(DeviceErrorCell), 0,
                                              nullptr, nullptr));
  MORACLE_OPENCL(queue.cl->clFinish(queue.of(stream)));
  const Status found = first_error(found_.data(), scopes_);
  if (!found) MORACLE_CHECK(reset(queue, stream, count));
  scopes_.collected();
  return found;
}

}  // namespace moracle::opencl
