#include "kernels/opencl/device/opencl_errors.h"

#include "kernels/opencl/device/opencl_memory.h"

namespace moracle::opencl {
namespace {

constexpr size_t kBytes = kDeviceErrorKinds * sizeof(DeviceErrorCell);

}  // namespace

Status DeviceErrors::open(const Queue& queue) {
  MORACLE_TRY(cells_, queue.memory->allocate(kBytes));
  return reset(queue, {});
}

Status DeviceErrors::reset(const Queue& queue, Stream stream) {
  const DeviceErrorCell empty[kDeviceErrorKinds];
  return check(queue.cl->clEnqueueSVMMemcpy(queue.of(stream), CL_TRUE, cells_.data(), empty, kBytes,
                                            0, nullptr, nullptr),
               "clEnqueueSVMMemcpy");
}

Status DeviceErrors::take(const Queue& queue, Stream stream) {
  DeviceErrorCell found[kDeviceErrorKinds];
  MORACLE_OPENCL(queue.cl->clEnqueueSVMMemcpy(queue.of(stream), CL_TRUE, found, cells_.data(),
                                              kBytes, 0, nullptr, nullptr));
  MORACLE_OPENCL(queue.cl->clFinish(queue.of(stream)));
  for (int kind = 0; kind < kDeviceErrorKinds; ++kind) {
    if (found[kind].first == DeviceErrorCell::kNone) continue;
    MORACLE_CHECK(reset(queue, stream));
    return error_of(static_cast<DeviceErrorKind>(kind), found[kind]);
  }
  return {};
}

}  // namespace moracle::opencl
