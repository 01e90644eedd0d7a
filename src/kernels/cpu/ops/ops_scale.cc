// Scales and copies of experts, capped and masked logits, on host memory.
#include <cmath>
#include <limits>

#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {

Status CpuOps::take_identity(int32_t* ids, const float* weights, int64_t num_tokens, int64_t top_k,
                             int64_t num_experts, float* sums, Stream) {
  for (int64_t t = 0; t < num_tokens; ++t) {
    sums[t] = 0;
    for (int64_t j = t * top_k; j < (t + 1) * top_k; ++j) {
      if (ids[j] < num_experts) continue;
      ids[j] = -1;
      sums[t] += weights[j];
    }
  }
  return {};
}

Status CpuOps::scale_by_expert(const int32_t* ids, int64_t count, const float* scales,
                               float* weights, Stream) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] >= 0) weights[i] *= scales[ids[i]];
  }
  return {};
}

Status CpuOps::keep_own(const int32_t* ids, int64_t num_tokens, int64_t top_k,
                        const int32_t* copies, int64_t num_experts, int32_t* own, Stream) {
  for (int64_t i = 0; i < num_tokens * top_k; ++i) {
    const int32_t id = ids[i];
    const bool is_here =
        id < 0 || copies[id] == 1 || (i / top_k + id) % copies[id] == copies[num_experts + id];
    own[i] = is_here ? id : -1;
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

Status CpuOps::keep_allowed(const Matrix& x, const uint32_t* allowed, Stream) {
  const int64_t row_words = (x.cols + 31) / 32;
  split_rows(x.rows, x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* const row = f32_row(x, r);
      for (int64_t c = 0; c < x.cols; ++c) {
        if ((allowed[r * row_words + c / 32] >> (c % 32) & 1) == 0)
          row[c] = -std::numeric_limits<float>::infinity();
      }
    }
  });
  return {};
}

}  // namespace moracle
