// Scales of experts and capped logits, on host memory.
#include <cmath>

#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {

Status CpuOps::scale_by_expert(const int32_t* ids, int64_t count, const float* scales,
                               float* weights, Stream) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] >= 0) weights[i] *= scales[ids[i]];
  }
  return {};
}

Status CpuOps::cap(const Matrix& x, float cap, Stream) {
  split_rows(x.rows, x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* const row = f32_row(x, r);
      for (int64_t c = 0; c < x.cols; ++c) row[c] = cap * std::tanh(row[c] / cap);
    }
  });
  return {};
}

}  // namespace moracle
