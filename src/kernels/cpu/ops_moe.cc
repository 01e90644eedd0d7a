// What surrounds the experts' GEMMs, on host memory.
#include <algorithm>
#include <cmath>

#include "base/scalar.h"
#include "kernels/cpu/cpu_ops.h"

namespace moracle {
namespace {

float load(const Matrix& m, int64_t i) {
  switch (m.dtype) {
    case DType::kBF16:
      return bf16_to_float(static_cast<const uint16_t*>(m.data)[i]);
    case DType::kF16:
      return f16_to_float(static_cast<const uint16_t*>(m.data)[i]);
    default:
      return static_cast<const float*>(m.data)[i];
  }
}

void store(const Matrix& m, int64_t i, float value) {
  switch (m.dtype) {
    case DType::kBF16:
      static_cast<uint16_t*>(m.data)[i] = float_to_bf16(value);
      break;
    case DType::kF16:
      static_cast<uint16_t*>(m.data)[i] = float_to_f16(value);
      break;
    default:
      static_cast<float*>(m.data)[i] = value;
      break;
  }
}

}  // namespace

Status CpuOps::convert(const Matrix& from, const Matrix& to, Stream) {
  pool_.split(from.rows, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      for (int64_t c = 0; c < to.cols; ++c) {
        store(to, r * to.stride + c, c < from.cols ? load(from, r * from.stride + c) : 0.0f);
      }
    }
  });
  return {};
}

Status CpuOps::scale_rows(const Matrix& from, const float* weights, const Matrix& to, Stream) {
  pool_.split(from.rows, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      for (int64_t c = 0; c < from.cols; ++c)
        store(to, r * to.stride + c, load(from, r * from.stride + c) * weights[r]);
    }
  });
  return {};
}

Status CpuOps::combine(const Matrix& y, const int32_t* slot_row, const float* topk_weights,
                       int64_t top_k, const Matrix& out, Stream) {
  pool_.split(out.rows, [&](int64_t first, int64_t last) {
    // A stretch of columns at a time, summed in f32 whatever the output's type.
    constexpr int64_t kStretch = 256;
    float sums[kStretch];
    for (int64_t t = first; t < last; ++t) {
      for (int64_t begin = 0; begin < out.cols; begin += kStretch) {
        const int64_t count = std::min(kStretch, out.cols - begin);
        std::fill(sums, sums + count, 0.0f);
        for (int64_t j = t * top_k; j < (t + 1) * top_k; ++j) {
          if (slot_row[j] < 0) continue;
          const float* row = f32_row(y, slot_row[j]) + begin;
          const float weight = topk_weights ? topk_weights[j] : 1.0f;
          for (int64_t c = 0; c < count; ++c) sums[c] += weight * row[c];
        }
        for (int64_t c = 0; c < count; ++c) store(out, t * out.stride + begin + c, sums[c]);
      }
    }
  });
  return {};
}

}  // namespace moracle
