#include <charconv>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "kernels/cpu/device/cpu_device.h"
#if defined(MORACLE_WITH_CUDA)
#include "kernels/cuda/device/cuda_device.h"
#endif

namespace moracle {

Result<DeviceName> parse_device(std::string_view text) {
  for (Platform platform : {Platform::kCpu, Platform::kCuda, Platform::kOpenCl}) {
    if (!text.starts_with(name(platform))) continue;
    std::string_view rest = text.substr(name(platform).size());
    if (rest.empty()) return DeviceName{platform, 0};
    int index = -1;
    if (platform != Platform::kCpu && rest.starts_with(':')) {
      rest.remove_prefix(1);
      const auto [end, error] = std::from_chars(rest.begin(), rest.end(), index);
      if (error == std::errc() && end == rest.end() && index >= 0)
        return DeviceName{platform, index};
    }
  }
  return Error{ErrorKind::kInvalidArgument, "", "--device", "cpu, cuda[:n] or opencl[:n]",
               str("it is '", text, "'")};
}

namespace {

Result<std::shared_ptr<Device>> open(std::string_view name, const DeviceName& device, int threads,
                                     bool pin) {
  if (device.platform == Platform::kCpu) return CpuDevice::open(threads, pin);
#if defined(MORACLE_WITH_CUDA)
  if (device.platform == Platform::kCuda) return CudaDevice::open(device.index, threads);
  const char* const there = "a device of this build: cpu, cuda[:n]";
#else
  const char* const there = "a device of this build: cpu";
#endif
  return Error{ErrorKind::kUnsupported, "", str("device '", name, "'"), there,
               "this build does not support it"};
}

}  // namespace

Result<std::shared_ptr<Device>> open_device(std::string_view name, int threads, bool pin) {
  MORACLE_TRY(const DeviceName device, parse_device(name));
  return or_out_of_memory(str("device '", name, "'"),
                          [&] { return open(name, device, threads, pin); });
}

}  // namespace moracle
