// The functions of OpenCL, found in the system's loader at run time. A machine without OpenCL
// starts the same program; only the device is then missing.
#pragma once

#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>

#include <string>

#include "moracle/base.h"

namespace moracle::opencl {

/// Every function that this library calls (opencl_functions.inc).
struct Api {
#define X(function) decltype(&::function) function = nullptr;
#include "oracle/machine/opencl_functions.inc"
#undef X
};

/// Loads libOpenCL.so.1 once per process. Errors: no loader on this system, or one older than
/// OpenCL 2.0, with the function that it lacks.
const Result<Api>& api();

/// Every device of every platform, CPUs included, in the loader's order: the order of `opencl:N`.
/// Empty without a loader.
std::vector<cl_device_id> device_ids();

/// A text property of a device, such as CL_DEVICE_NAME.
std::string text_of(const Api& api, cl_device_id device, cl_device_info what);

/// A property of a fixed size; zero if the device does not know it.
template <class Value>
Value value_of(const Api& api, cl_device_id device, cl_device_info what) {
  Value value{};
  if (api.clGetDeviceInfo(device, what, sizeof value, &value, nullptr) != CL_SUCCESS)
    return Value{};
  return value;
}

}  // namespace moracle::opencl
