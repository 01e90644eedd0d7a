// Alignment that kernels for linear layers need of their callers' rows.
#pragma once

#include "moracle/base.h"

namespace moracle::cuda {

/// True if 16-byte loads can read the rows, which are in bf16.
inline bool has_vector_rows(const Matrix& x) {
  return x.dtype == DType::kBF16 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
         x.stride % 8 == 0;
}
/// True if kernels can store pairs of outputs.
inline bool stores_pairs(const Matrix& y) {
  const uintptr_t pair = 2 * bits(y.dtype) / 8;
  return reinterpret_cast<uintptr_t>(y.data) % pair == 0 && y.stride % 2 == 0;
}

}  // namespace moracle::cuda
