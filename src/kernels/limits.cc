#include "kernels/limits.h"

#include "base/text.h"
#include "base/try.h"
#include "kernels/cpu/limits/limits.h"
#if defined(MORACLE_WITH_CUDA)
#include "kernels/cuda/limits/cuda_limits.h"
#endif
#if defined(MORACLE_WITH_OPENCL)
#include "kernels/opencl/limits/opencl_limits.h"
#endif

namespace moracle {

Result<std::unique_ptr<LimitsProbe>> open_limits(const std::shared_ptr<Device>& device, int threads,
                                                 size_t buffer_bytes, const Progress& progress) {
  if (device->platform() == Platform::kCpu) {
    MORACLE_TRY(cpu::LimitsProbe probe, cpu::LimitsProbe::make(threads, buffer_bytes, progress));
    return std::unique_ptr<LimitsProbe>(std::make_unique<cpu::LimitsProbe>(std::move(probe)));
  }
#if defined(MORACLE_WITH_CUDA)
  if (device->platform() == Platform::kCuda) return cuda::open_limits(device, buffer_bytes);
#endif
#if defined(MORACLE_WITH_OPENCL)
  if (device->platform() == Platform::kOpenCl) return opencl::open_limits(device, buffer_bytes);
#endif
  return Error{ErrorKind::kUnsupported, "", device->name(),
               "a device whose limits Moracle can measure",
               str("it cannot measure ", name(device->platform()))};
}

Status go_on_measuring(const Progress& progress) {
  if (!progress || progress(0, 0)) return {};
  return Error{ErrorKind::kCancelled, "", "measuring the limits", "", "stopped on request"};
}

}  // namespace moracle
