#if defined(MORACLE_WITH_OPENCL)
#include "oracle/machine/opencl_api.h"

#include "oracle/machine/shared_library.h"

namespace moracle::opencl {
namespace {

constexpr const char* kLoader = "libOpenCL.so.1";

Result<Api> load() {
  const auto wrong = [](std::string need, std::string fact) {
    return Error{ErrorKind::kUnsupported, "", "opencl", std::move(need), std::move(fact)};
  };
  SharedLibrary library(kLoader);
  if (!library.load_error().empty())
    return wrong("the loader of OpenCL (package ocl-icd-libopencl1)", library.load_error());
  Api api;
#define X(function) library.find(api.function, #function);
#include "oracle/machine/opencl_functions.inc"
#undef X
  if (!library.missing().empty())
    return wrong("a loader of OpenCL 2.0 or later", library.missing());
  return api;
}

}  // namespace

const Result<Api>& api() {
  static const Result<Api> kApi = load();
  return kApi;
}

std::vector<cl_device_id> device_ids() {
  std::vector<cl_device_id> all;
  if (!api()) return all;
  const Api& cl = *api();
  cl_uint num_platforms = 0;
  if (cl.clGetPlatformIDs(0, nullptr, &num_platforms) != CL_SUCCESS || num_platforms == 0)
    return all;
  std::vector<cl_platform_id> platforms(num_platforms);
  if (cl.clGetPlatformIDs(num_platforms, platforms.data(), nullptr) != CL_SUCCESS) return all;
  for (cl_platform_id platform : platforms) {
    cl_uint count = 0;
    if (cl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS) continue;
    std::vector<cl_device_id> devices(count);
    if (cl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, devices.data(), nullptr) !=
        CL_SUCCESS)
      continue;
    all.insert(all.end(), devices.begin(), devices.end());
  }
  return all;
}

std::string text_of(const Api& api, cl_device_id device, cl_device_info what) {
  size_t bytes = 0;
  if (api.clGetDeviceInfo(device, what, 0, nullptr, &bytes) != CL_SUCCESS || bytes == 0) return {};
  std::string text(bytes, '\0');
  if (api.clGetDeviceInfo(device, what, bytes, text.data(), nullptr) != CL_SUCCESS) return {};
  text.resize(bytes - 1);  // without the terminator
  return text;
}

}  // namespace moracle::opencl
#endif
