// Turns results of OpenCL calls into Status: the call that failed, and the name of its error.
#pragma once

#include "base/try.h"
#include "moracle/base.h"
#include "oracle/machine/opencl_api.h"

namespace moracle::opencl {

/// "CL_OUT_OF_RESOURCES", or the number of an error that the standard does not name.
std::string name_of(cl_int code);

/// Errors: names `call` if `code` is an error. kOutOfMemory if memory was refused, else kIo.
Status check(cl_int code, const char* call);

}  // namespace moracle::opencl

/// Returns the Error of an OpenCL call from the enclosing function.
#define MORACLE_OPENCL(...) MORACLE_CHECK(::moracle::opencl::check((__VA_ARGS__), #__VA_ARGS__))
