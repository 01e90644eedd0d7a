// A head's state in strips of columns, as the chunk kernels multiply it (cpu::DeltaChunk).
#pragma once

#include <algorithm>

#include "kernels/cpu/simd/vector_ops.h"

namespace moracle {

/// Calls copy(offset in S [key_dim, value_dim], offset in the strips) for each run of kDeltaStrip
/// columns.
template <class Copy>
void each_strip_row(int64_t key_dim, int64_t value_dim, const Copy& copy) {
  constexpr int64_t kStrip = cpu::kDeltaStrip;
  for (int64_t at = 0; at < value_dim; at += kStrip) {
    for (int64_t d = 0; d < key_dim; ++d)
      copy(d * value_dim + at, (at / kStrip * key_dim + d) * kStrip);
  }
}
/// `state` null: zeros.
inline void load_strips(const float* state, int64_t key_dim, int64_t value_dim, float* strips) {
  if (state == nullptr) {
    std::fill_n(strips, key_dim * value_dim, 0.0f);
    return;
  }
  each_strip_row(key_dim, value_dim, [&](int64_t row, int64_t strip) {
    std::copy_n(state + row, cpu::kDeltaStrip, strips + strip);
  });
}
inline void store_strips(const float* strips, int64_t key_dim, int64_t value_dim, float* state) {
  each_strip_row(key_dim, value_dim, [&](int64_t row, int64_t strip) {
    std::copy_n(strips + strip, cpu::kDeltaStrip, state + row);
  });
}

}  // namespace moracle
