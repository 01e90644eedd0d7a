#include "kernels/recording.h"

#if defined(MORACLE_WITH_CUDA)
#include "kernels/cuda/cuda_recording.h"
#endif

namespace moracle {

bool can_record(const Device& device) {
#if defined(MORACLE_WITH_CUDA)
  return device.platform() == Platform::kCuda;
#else
  static_cast<void>(device);
  return false;
#endif
}

Result<std::unique_ptr<Recording>> record(Device& device,
                                          const std::function<Status(Stream)>& enqueue) {
#if defined(MORACLE_WITH_CUDA)
  if (can_record(device)) return cuda::record(device, enqueue);
#else
  static_cast<void>(enqueue);
#endif
  return Error{ErrorKind::kUnsupported, "", device.name(), "a device that can record work",
               "it works at once"};
}

}  // namespace moracle
