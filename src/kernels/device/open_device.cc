#include <charconv>

#include "base/out_of_memory.h"
#include "base/text.h"
#include "base/try.h"
#include "kernels/cpu/device/cpu_device.h"
#if defined(MORACLE_WITH_CUDA)
#include "kernels/cuda/device/cuda_device.h"
#endif
#if defined(MORACLE_WITH_OPENCL)
#include "kernels/opencl/device/opencl_device.h"
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
  return Error{ErrorKind::kInvalidArgument, "", "device", "cpu, cuda[:n] or opencl[:n]",
               str("it is '", text, "'")};
}

std::string name(const DeviceName& device) {
  const std::string platform(name(device.platform));
  return device.platform == Platform::kCpu ? platform : str(platform, ":", device.index);
}

namespace {

constexpr const char* kThere =
    "a device of this build: cpu"
#if defined(MORACLE_WITH_CUDA)
    ", cuda[:n]"
#endif
#if defined(MORACLE_WITH_OPENCL)
    ", opencl[:n]"
#endif
    ;

Result<std::shared_ptr<Device>> open(std::string_view name, const DeviceName& device,
                                     const DeviceOptions& options) {
  MORACLE_CHECK(check_engine_options(options));
  if (device.platform == Platform::kCpu) return CpuDevice::open(options);
  if (!options.cpus.empty()) {
    return Error{ErrorKind::kInvalidArgument, "", "cpus", "the device cpu",
                 str("the device is ", name)};
  }
#if defined(MORACLE_WITH_CUDA)
  if (device.platform == Platform::kCuda) return CudaDevice::open(device.index, options);
#endif
#if defined(MORACLE_WITH_OPENCL)
  if (device.platform == Platform::kOpenCl) return OpenClDevice::open(device.index, options);
#endif
  return Error{ErrorKind::kUnsupported, "", str("device '", name, "'"), kThere,
               "this build does not support it"};
}

}  // namespace

Result<std::shared_ptr<Device>> open_device(std::string_view name, const DeviceOptions& options) {
  MORACLE_TRY(const DeviceName device, parse_device(name));
  return or_out_of_memory(str("device '", name, "'"), [&] { return open(name, device, options); });
}

Result<std::shared_ptr<Device>> open_device(const DeviceName& device,
                                            const DeviceOptions& options) {
  return open_device(name(device), options);
}

Result<std::shared_ptr<Device>> open_device(std::string_view name, int threads, bool pin) {
  return open_device(name, {.threads = threads, .pin = pin});
}

}  // namespace moracle
