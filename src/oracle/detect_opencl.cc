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

template <class Value>
Value value_of(cl_device_id device, cl_device_info what) {
  Value value{};
  clGetDeviceInfo(device, what, sizeof value, &value, nullptr);
  return value;
}

// Reads the device's extension list, because the compiler's support is what counts.
GpuFeature features_of(cl_device_id device) {
  const std::string extensions = " " + text_of(device, CL_DEVICE_EXTENSIONS) + " ";
  constexpr std::pair<const char*, GpuFeature> kKnown[] = {
      {" cl_khr_subgroups ", GpuFeature::kSubgroups},
      {" cl_intel_subgroups ", GpuFeature::kSubgroups},
      {" cl_khr_integer_dot_product ", GpuFeature::kIntegerDot},
      {" cl_khr_fp16 ", GpuFeature::kFp16},
      {" cl_intel_subgroup_matrix_multiply_accumulate ", GpuFeature::kMatrix}};
  GpuFeature features = GpuFeature::kNone;
  for (const auto& [extension, feature] : kKnown) {
    if (extensions.find(extension) != extensions.npos) features = features | feature;
  }
  return features;
}

GpuInfo describe(cl_device_id device, int index) {
  return {
      .platform = Platform::kOpenCl,
      .index = index,
      .model = text_of(device, CL_DEVICE_NAME),
      .memory_bytes = static_cast<int64_t>(value_of<cl_ulong>(device, CL_DEVICE_GLOBAL_MEM_SIZE)),
      .shared_memory_bytes =
          static_cast<int64_t>(value_of<cl_ulong>(device, CL_DEVICE_LOCAL_MEM_SIZE)),
      .features = features_of(device),
      .is_cpu = (value_of<cl_device_type>(device, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_CPU) != 0};
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
      found.push_back(describe(device, static_cast<int>(found.size())));
    }
  }
  return found;
}

}  // namespace moracle
#endif
