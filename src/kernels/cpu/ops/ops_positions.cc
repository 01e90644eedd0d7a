// RoPE, on host memory; attention itself is in ops_attend.cc.
#include <cmath>
#include <cstring>

#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {
namespace {

// The vectorized cosines and sines cover angles up to 2^20.
void cos_sin(const cpu::VectorOps& vector, float position, const float* frequencies, int64_t count,
             float factor, float* cosines, float* sines) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(frequencies[i]));
  if (std::fabs(position) * largest <= 0x1p20f)
    return vector.cos_sin(position, frequencies, count, factor, cosines, sines);
  for (int64_t i = 0; i < count; ++i) {
    const float angle = position * frequencies[i];
    cosines[i] = std::cos(angle) * factor, sines[i] = std::sin(angle) * factor;
  }
}

}  // namespace

Status CpuOps::rotate(const Matrix& x, const RotaryShape& shape, const float* frequencies,
                      const int32_t* positions, Stream) {
  split_rows(x.rows, x.cols, [&](int64_t begin, int64_t end) {
    // Computed once for all heads, kPairs pairs at a time.
    constexpr int64_t kPairs = 256;
    float cosines[kPairs], sines[kPairs];
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < shape.num_pairs; i += kPairs) {
        const int64_t count = std::min(kPairs, shape.num_pairs - i);
        cos_sin(vector_, static_cast<float>(positions[r]), frequencies + i, count, shape.factor,
                cosines, sines);
        for (int64_t head = 0; head < x.cols; head += shape.head_dim) {
          float* const first = f32_row(x, r) + shape.first + head;
          if (shape.interleaved)
            vector_.rotate_neighbours(first + 2 * i, cosines, sines, count);
          else
            vector_.rotate_halves(first + i, first + i + shape.num_pairs, cosines, sines, count);
        }
      }
    }
  });
  return {};
}

Status CpuOps::temper(const Matrix& x, const int32_t* positions, int32_t offset, float scale,
                      float strength, Stream) {
  split_rows(x.rows, x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float steps = std::floor(static_cast<float>(positions[r] + offset) / scale);
      const float factor = std::log1p(steps) * strength + 1;
      for (int64_t c = 0; c < x.cols; ++c) f32_row(x, r)[c] *= factor;
    }
  });
  return {};
}

Status CpuOps::copy_heads(const Matrix& from, int64_t from_dim, const Matrix& to, int64_t to_dim,
                          int64_t num_heads, int64_t count, Stream) {
  split_rows(from.rows, num_heads * count, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t head = 0; head < num_heads; ++head) {
        std::memcpy(f32_row(to, r) + head * to_dim, f32_row(from, r) + head * from_dim,
                    count * sizeof(float));
      }
    }
  });
  return {};
}

}  // namespace moracle
