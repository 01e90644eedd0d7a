// What surrounds the experts' GEMMs, on host memory.
#include <algorithm>
#include <cmath>

#include "base/scalar.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_ops.h"

namespace moracle {

std::unique_ptr<Ops> CpuDevice::make_cpu_ops(ThreadPool& pool) {
  return std::make_unique<CpuOps>(pool);
}

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

Status CpuOps::plan_rows(const int32_t* topk_ids, int64_t num_tokens, int64_t top_k,
                         int64_t num_experts, const RowPlan& plan, Stream) {
  // Counting sort; stable, so the order of an expert's rows is the order of the tokens.
  auto is_local = [&](int32_t id) { return id >= 0 && id < num_experts; };
  std::fill(plan.expert_offsets, plan.expert_offsets + num_experts + 1, 0);
  for (int64_t i = 0; i < num_tokens * top_k; ++i) {
    if (is_local(topk_ids[i])) ++plan.expert_offsets[topk_ids[i] + 1];
  }
  for (int64_t e = 0; e < num_experts; ++e) plan.expert_offsets[e + 1] += plan.expert_offsets[e];
  for (int64_t i = 0; i < num_tokens * top_k; ++i) {
    plan.slot_row[i] = -1;
    if (!is_local(topk_ids[i])) continue;
    // The running offset of an expert moves to its end here and is set back below.
    const int32_t row = plan.expert_offsets[topk_ids[i]]++;
    plan.row_token[row] = static_cast<int32_t>(i / top_k);
    plan.slot_row[i] = row;
  }
  for (int64_t e = num_experts; e > 0; --e) plan.expert_offsets[e] = plan.expert_offsets[e - 1];
  plan.expert_offsets[0] = 0;
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
          for (int64_t c = 0; c < count; ++c) sums[c] += topk_weights[j] * row[c];
        }
        for (int64_t c = 0; c < count; ++c) store(out, t * out.stride + begin + c, sums[c]);
      }
    }
  });
  return {};
}

}  // namespace moracle
