// The functions of OpenCL, found in the system's loader at run time. A machine without OpenCL
// starts the same program; only the device is then missing.
#pragma once

#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>

#include <string>

#include "moracle/base.h"

namespace moracle::opencl {

/// Every function that this library calls.
#define MORACLE_OPENCL_FUNCTIONS(X)                                                                \
  X(clGetPlatformIDs)                                                                              \
  X(clGetPlatformInfo) X(clGetDeviceIDs) X(clGetDeviceInfo) X(clCreateContext) X(clReleaseContext) \
      X(clCreateCommandQueueWithProperties) X(clReleaseCommandQueue) X(clCreateProgramWithSource)  \
          X(clCreateProgramWithBinary) X(clBuildProgram) X(clGetProgramInfo)                       \
              X(clGetProgramBuildInfo) X(clReleaseProgram) X(clCreateKernel) X(clReleaseKernel)    \
                  X(clSetKernelArg) X(clSetKernelArgSVMPointer) X(clSetKernelExecInfo)             \
                      X(clGetKernelWorkGroupInfo) X(clEnqueueNDRangeKernel) X(clSVMAlloc)          \
                          X(clSVMFree) X(clEnqueueSVMMemcpy) X(clEnqueueSVMMemFill)                \
                              X(clCreateBuffer) X(clReleaseMemObject) X(clEnqueueMapBuffer)        \
                                  X(clEnqueueUnmapMemObject) X(clEnqueueMarkerWithWaitList)        \
                                      X(clEnqueueBarrierWithWaitList) X(clWaitForEvents)           \
                                          X(clReleaseEvent) X(clGetEventProfilingInfo) X(clFlush)  \
                                              X(clFinish)

struct Api {
#define MORACLE_MEMBER(function) decltype(&::function) function = nullptr;
  MORACLE_OPENCL_FUNCTIONS(MORACLE_MEMBER)
#undef MORACLE_MEMBER
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
