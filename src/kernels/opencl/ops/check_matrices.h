// Checks of arguments that all operations of OpenCL devices share.
#pragma once

#include <initializer_list>

#include "base/try.h"
#include "kernels/check_ops.h"

namespace moracle::opencl {

/// Errors: a matrix is not f32, bf16 or f16.
inline Status check_floats(std::initializer_list<const Matrix*> matrices) {
  return moracle::check_floats("opencl", matrices);
}

}  // namespace moracle::opencl
