// Quantizes one row of activations: for Ops::quantize, and for kernels that quantize their results.
#pragma once

#include <algorithm>

#include "kernels/cpu/simd/vector_ops.h"
#include "quant/activation.h"
#include "quant/rows.h"

namespace moracle::cpu {

/// Row r of `from` (f32) to codes and scales of `to`; columns past from.cols become 0.
inline void quantize_row(const VectorOps& vector, const QuantKey& key, const Matrix& from,
                         int64_t r, const Rows& to) {
  const auto* const x = static_cast<const float*>(from.data) + r * from.stride;
  auto* const codes = static_cast<uint8_t*>(to.values.data) + r * to.values.stride;
  float* const scales = to.scales + r * to.num_scales;
  if (key.dtype == DType::kI8)
    *scales = vector.quantize_int8(x, from.cols, reinterpret_cast<int8_t*>(codes));
  else
    vector.quantize_e4m3(x, from.cols, group_cols(key, from.cols),
                         key.scale_dtype == DType::kF8E8M0, codes, scales);
  std::fill(codes + from.cols, codes + to.values.cols, uint8_t{0});
}

}  // namespace moracle::cpu
