// Operations around the experts' GEMMs, on host memory.
#include <algorithm>

#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {
namespace {

// Rows of 16-bit floats are converted to f32 in blocks of columns that fit in L1.
constexpr int64_t kTileCols = 1024;

// `count` elements of m from element `at` on: in place, or converted into `scratch`.
const float* load(const cpu::VectorOps& vector, const Matrix& m, int64_t at, int64_t count,
                  float* scratch) {
  switch (m.dtype) {
    case DType::kBF16:
      vector.from_bf16(static_cast<const uint16_t*>(m.data) + at, count, scratch);
      return scratch;
    case DType::kF16:
      vector.from_f16(static_cast<const uint16_t*>(m.data) + at, count, scratch);
      return scratch;
    default:
      return static_cast<const float*>(m.data) + at;
  }
}

void store(const cpu::VectorOps& vector, const float* values, int64_t count, const Matrix& m,
           int64_t at) {
  switch (m.dtype) {
    case DType::kBF16:
      return vector.to_bf16(values, count, static_cast<uint16_t*>(m.data) + at);
    case DType::kF16:
      return vector.to_f16(values, count, static_cast<uint16_t*>(m.data) + at);
    default: {
      float* const to = static_cast<float*>(m.data) + at;
      if (values != to) std::copy_n(values, count, to);
    }
  }
}

// Where a tile of m accumulates sums before the store: m itself if it holds f32.
float* sums_of(const Matrix& m, int64_t at, float* scratch) {
  return m.dtype == DType::kF32 ? static_cast<float*>(m.data) + at : scratch;
}

// The slot of token t whose row is the next one after `row`; -1: none. Rows lie in expert order.
// Kernels that accumulate a token's rows themselves use the same order.
int64_t next_slot(const int32_t* slot_row, int64_t t, int64_t top_k, int32_t row) {
  int64_t next = -1;
  for (int64_t j = t * top_k; j < (t + 1) * top_k; ++j) {
    if (slot_row[j] > row && (next < 0 || slot_row[j] < slot_row[next])) next = j;
  }
  return next;
}

}  // namespace

Status CpuOps::convert(const Matrix& from, const Matrix& to, Stream) {
  split_rows(from.rows, to.cols, [&](int64_t first, int64_t last) {
    float scratch[kTileCols];
    for (int64_t r = first; r < last; ++r) {
      for (int64_t c = 0; c < to.cols; c += kTileCols) {
        const int64_t count = std::min(kTileCols, to.cols - c);
        const int64_t there = std::clamp<int64_t>(from.cols - c, 0, count);
        const float* values = load(vector_, from, r * from.stride + c, there, scratch);
        store(vector_, values, there, to, r * to.stride + c);
        if (there == count) continue;
        std::fill(scratch, scratch + count - there, 0.0f);
        store(vector_, scratch, count - there, to, r * to.stride + c + there);
      }
    }
  });
  return {};
}

Status CpuOps::scale_rows(const Matrix& from, const float* weights, const Matrix& to, Stream) {
  split_rows(from.rows, from.cols, [&](int64_t first, int64_t last) {
    float scratch[kTileCols];
    for (int64_t r = first; r < last; ++r) {
      for (int64_t c = 0; c < from.cols; c += kTileCols) {
        const int64_t count = std::min(kTileCols, from.cols - c), at = r * to.stride + c;
        float* const scaled = sums_of(to, at, scratch);
        vector_.scale(load(vector_, from, r * from.stride + c, count, scratch), weights[r], count,
                      scaled);
        store(vector_, scaled, count, to, at);
      }
    }
  });
  return {};
}

Status CpuOps::combine(const Matrix& y, const int32_t* slot_row, const float* topk_weights,
                       int64_t top_k, const Matrix& out, Stream) {
  // Sum one block of columns at a time, in f32 for any output type. Split the columns over threads:
  // one token of a wide model is too much work for one thread.
  const int64_t tiles = (out.cols + kTileCols - 1) / kTileCols;
  split_rows(out.rows * tiles, kTileCols * top_k, [&](int64_t first, int64_t last) {
    constexpr int64_t kRows = 32;
    const float* rows[kRows];
    float weights[kRows], scratch[kTileCols];
    for (int64_t i = first; i < last; ++i) {
      const int64_t t = i / tiles, begin = i % tiles * kTileCols;
      const int64_t count = std::min(kTileCols, out.cols - begin), at = t * out.stride + begin;
      float* const sums = sums_of(out, at, scratch);
      int64_t held = 0;
      bool onto = false;
      for (int64_t j = next_slot(slot_row, t, top_k, -1); j >= 0;
           j = next_slot(slot_row, t, top_k, slot_row[j])) {
        if (held == kRows) {
          vector_.weighted_sum(rows, weights, held, count, onto, sums);
          held = 0, onto = true;
        }
        rows[held] = f32_row(y, slot_row[j]) + begin;
        weights[held++] = topk_weights ? topk_weights[j] : 1.0f;
      }
      vector_.weighted_sum(rows, weights, held, count, onto, sums);
      store(vector_, sums, count, out, at);
    }
  });
  return {};
}

}  // namespace moracle
