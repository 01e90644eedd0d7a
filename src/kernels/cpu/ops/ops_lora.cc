// Low-rank adapters beside a grouped GEMM, on host memory. Every row may use another adapter.
#include <algorithm>

#include "base/text.h"
#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {
namespace {

constexpr int64_t kChunk = 64;  // ranks summed at a time

// y += B (A x) over `ranks` of the adapter's rank, from `first` on, for one part of y's columns.
void add_slice(const cpu::VectorOps& vector, const float* x, const LoraTable& table, int64_t a_row,
               int64_t b_row, int64_t columns, int64_t first, int64_t ranks, float* y) {
  float sums[kChunk];
  for (int64_t j = 0; j < ranks; ++j)
    sums[j] = vector.dot(f32_row(table.a, a_row + first + j), x, table.a.cols);
  for (int64_t n = 0; n < columns; ++n) {
    const float delta = vector.dot(f32_row(table.b, b_row + n) + first, sums, ranks);
    if (delta != 0) y[n] += delta;  // skip 0: -0 + 0 would change the sign of zero
  }
}

void add_adapter(const cpu::VectorOps& vector, const float* x, const LoraTable& table,
                 int64_t adapter, int64_t expert, float* y) {
  const int64_t pair = adapter * table.num_experts + expert, columns = table.n / table.num_slices;
  for (int64_t slice = 0; slice < table.num_slices; ++slice) {
    const int64_t a_row = (pair * table.num_slices + slice) * table.rank;
    const int64_t b_row = pair * table.n + slice * columns;
    for (int64_t first = 0; first < table.rank; first += kChunk) {
      const int64_t ranks = std::min(kChunk, table.rank - first);
      add_slice(vector, x, table, a_row, b_row, columns, first, ranks, y + slice * columns);
    }
  }
}

}  // namespace

Status CpuOps::add_lora(const Matrix& x, const int32_t* row_index, const RowPlan& rows,
                        const int32_t* lora_ids, int64_t adapters, const LoraTable& table,
                        const Matrix& y, Stream) {
  const int32_t all[] = {0, static_cast<int32_t>(y.rows)};
  const int32_t* const offsets = rows.expert_offsets != nullptr ? rows.expert_offsets : all;
  const auto token_of = [&](int64_t r) {
    return rows.row_token != nullptr ? int64_t{rows.row_token[r]} : r;
  };
  for (int64_t e = 0; e < table.num_experts; ++e) {
    for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) {
      const int32_t id = lora_ids[token_of(r)];
      if (id >= -1 && id < adapters) continue;
      keep_error("lora_ids", str("-1, or an adapter from 0 to ", adapters - 1),
                 str("token ", token_of(r), " has ", id));
    }
    const int64_t work = table.rank * (table.a.cols * table.num_slices + table.n);
    split_rows(offsets[e + 1] - offsets[e], work, [&](int64_t first, int64_t last) {
      for (int64_t r = offsets[e] + first; r < offsets[e] + last; ++r) {
        const int32_t id = lora_ids[token_of(r)];
        if (id < 0 || id >= adapters) continue;
        add_adapter(vector_, f32_row(x, row_index ? row_index[r] : r), table, id, e, f32_row(y, r));
      }
    });
  }
  return {};
}

}  // namespace moracle
