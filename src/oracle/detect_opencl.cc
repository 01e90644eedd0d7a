#if defined(MORACLE_WITH_OPENCL)
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>

#include "oracle/detect.h"

namespace moracle {
namespace {

std::string text_of(cl_device_id device, cl_device_info what) {
  size_t bytes = 0;
  if (clGetDeviceInfo(device, what, 0, nullptr, &bytes) != CL_SUCCESS || bytes == 0) return {};
  std::string text(bytes, '\0');
  clGetDeviceInfo(device, what, bytes, text.data(), nullptr);
  text.resize(bytes - 1);  // without the terminator
  return text;
}

}  // namespace

std::vector<GpuInfo> detect_opencl() {
  std::vector<GpuInfo> found;
  cl_uint num_platforms = 0;
  if (clGetPlatformIDs(0, nullptr, &num_platforms) != CL_SUCCESS) return found;
  std::vector<cl_platform_id> platforms(num_platforms);
  clGetPlatformIDs(num_platforms, platforms.data(), nullptr);
  for (cl_platform_id platform : platforms) {
    cl_uint num_devices = 0;
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &num_devices) != CL_SUCCESS)
      continue;
    std::vector<cl_device_id> devices(num_devices);
    clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, num_devices, devices.data(), nullptr);
    for (cl_device_id device : devices) {
      cl_ulong memory = 0;
      clGetDeviceInfo(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof memory, &memory, nullptr);
      found.push_back({Platform::kOpenCl, static_cast<int>(found.size()),
                       text_of(device, CL_DEVICE_NAME), 0, static_cast<int64_t>(memory)});
    }
  }
  return found;
}

}  // namespace moracle
#endif
