// Checks of arguments that all operations of OpenCL devices share.
#pragma once

#include <initializer_list>

#include "base/text.h"
#include "base/try.h"
#include "kernels/ops.h"

namespace moracle::opencl {

/// Errors: a matrix is not f32, bf16 or f16.
inline Status check_floats(std::initializer_list<const Matrix*> matrices) {
  for (const Matrix* m : matrices) {
    if (m->dtype == DType::kF32 || m->dtype == DType::kBF16 || m->dtype == DType::kF16) continue;
    return Error{ErrorKind::kUnsupported, "", "opencl", "activations in f32, bf16 or f16",
                 str("they are ", name(m->dtype))};
  }
  return {};
}

}  // namespace moracle::opencl
