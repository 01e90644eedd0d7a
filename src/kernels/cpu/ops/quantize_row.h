// Quantizes one row of activations: for Ops::quantize, and for kernels that quantize their results.
#pragma once

#include <algorithm>

#include "kernels/cpu/simd/vector_ops.h"
#include "quant/activation.h"
#include "quant/rows.h"

namespace moracle::cpu {

/// `x` [cols] to codes and scales of row r of `to`; further columns become 0.
inline void quantize_row(const VectorOps& vector, const QuantKey& key, const float* x, int64_t cols,
                         const Rows& to, int64_t r) {
  auto* const codes = static_cast<uint8_t*>(to.values.data) + r * to.values.stride;
  float* const scales = to.scales + r * to.num_scales;
  if (key.dtype == DType::kI8)
    *scales = vector.quantize_int8(x, cols, reinterpret_cast<int8_t*>(codes));
  else
    vector.quantize_e4m3(x, cols, group_cols(key, cols), key.scale_dtype == DType::kF8E8M0, codes,
                         scales);
  std::fill(codes + cols, codes + to.values.cols, uint8_t{0});
}

}  // namespace moracle::cpu
