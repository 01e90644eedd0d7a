// The epilogue of a GEMM: scales, bias, and the weighted sum of a token's rows.
#pragma once

#include "kernels/cpu/simd/vector.h"
#include "kernels/cpu/simd/vector_ops.h"

namespace moracle::cpu {
namespace {

void store_rows(const StoreArgs& args) {
  const StoreArgs f = args;  // a local copy: no store below can alias it
  constexpr int kColumns = 16;
  for (int at = 0; at < f.columns; at += kLanes) {
    const int columns = f.columns - at;
    const bool whole = columns >= kLanes;
    const Vec scale = f.w_scale == nullptr ? splat(1) : load(f.w_scale + at);
    const Vec bias = f.bias == nullptr ? Vec{} : load(f.bias + at);
    for (int r = 0; r < f.rows; ++r) {
      Vec v = load(f.sum + r * kColumns + at);
      if (f.x_scale != nullptr) v = v * splat(f.x_scale[r * f.x_scale_stride]);
      if (f.w_scale != nullptr) v = v * scale;
      if (f.bias != nullptr) v = v + bias;
      float* const to = f.to + (f.to_row == nullptr ? r : f.to_row[r]) * f.to_stride + at;
      if (f.add) {
        const Vec weight = splat(f.weight == nullptr ? 1.0f : f.weight[r]);
        v = multiply_add(weight, v, whole ? load(to) : load_first(to, columns));
      }
      whole ? store(to, v) : store_first(to, v, columns);
    }
  }
}

}  // namespace
}  // namespace moracle::cpu
