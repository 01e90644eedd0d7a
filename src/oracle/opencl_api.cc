#if defined(MORACLE_WITH_OPENCL)
#include "oracle/opencl_api.h"

#include <dlfcn.h>

#include "base/text.h"

namespace moracle::opencl {
namespace {

constexpr const char* kLoader = "libOpenCL.so.1";

Result<Api> load() {
  const auto wrong = [](std::string need, std::string fact) {
    return Error{ErrorKind::kUnsupported, "", "opencl", std::move(need), std::move(fact)};
  };
  // Never closed: drivers run threads of their own.
  void* const library = ::dlopen(kLoader, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const said = ::dlerror();
    return wrong("the loader of OpenCL (package ocl-icd-libopencl1)",
                 said != nullptr ? said : str(kLoader, " does not load"));
  }
  Api api;
  const char* lacking = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr && lacking == nullptr) lacking = name;
  };
#define X(function) find(api.function, #function);
#include "oracle/opencl_functions.inc"
#undef X
  if (lacking != nullptr)
    return wrong("a loader of OpenCL 2.0 or later", str(kLoader, " has no ", lacking));
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
