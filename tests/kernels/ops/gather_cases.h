// Cases of Ops::gather_columns for every device, with the expected output.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/ops.h"

namespace moracle {

struct GatherCase {
  const char* name;
  DType dtype;
  int64_t source_rows, rows, cols, padded_cols, num_scales, num_experts;
  bool indexed;             ///< rows read sources by row_index
  int64_t first_row = 0;    ///< of the part that is gathered
  int64_t expert_rows = 0;  ///< where the last expert ends; 0: at the last row
};

inline std::vector<GatherCase> gather_cases() {
  return {
      {"tokens to one matrix, f32", DType::kF32, 5, 5, 70, 70, 0, 1, false},
      {"tokens to three experts, bf16, padded", DType::kBF16, 4, 9, 37, 48, 0, 3, true},
      {"codes with scales, part of the rows", DType::kI8, 6, 5, 130, 144, 2, 4, true, 3},
      {"rows of experts in place, part of them", DType::kF32, 4, 4, 33, 33, 0, 2, false, 2},
      {"rows past the last expert are left alone", DType::kI8, 6, 6, 40, 40, 1, 2, true, 0, 4},
      {"enough rows for all threads", DType::kF32, 64, 200, 512, 512, 0, 3, true},
  };
}

struct GatherData {
  std::vector<std::byte> from, to, expected;
  std::vector<float> from_scales, to_scales, expected_scales;
  std::vector<int32_t> row_index;  ///< from row 0 on
  std::vector<int32_t> offsets;    ///< [num_experts + 1]
  std::vector<int32_t> orders;     ///< of each expert, 16 numbers apart
  int64_t order_cols = 0;
  int64_t order_stride() const { return (order_cols + 16) * static_cast<int64_t>(sizeof(int32_t)); }
};

inline GatherData make_gather_data(const GatherCase& c, std::mt19937& random) {
  GatherData d;
  const int64_t size = bits(c.dtype) / 8, last = c.first_row + c.rows;
  d.from.resize(c.source_rows * c.cols * size);
  for (std::byte& byte : d.from) byte = static_cast<std::byte>(random());
  d.to.assign(c.rows * c.padded_cols * size, std::byte{0xee});
  d.expected = d.to;
  for (int64_t i = 0; i < c.source_rows * c.num_scales; ++i)
    d.from_scales.push_back(static_cast<float>(i + 1));
  d.to_scales.assign(c.rows * c.num_scales, -1.0f);
  d.expected_scales = d.to_scales;
  for (int64_t r = 0; r < last; ++r)
    d.row_index.push_back(static_cast<int32_t>(random() % c.source_rows));
  const int64_t end = c.expert_rows > 0 ? c.expert_rows : last;
  for (int64_t e = 0; e <= c.num_experts; ++e)
    d.offsets.push_back(static_cast<int32_t>(end * e / c.num_experts));
  d.order_cols = c.cols;
  d.orders.resize(c.num_experts * (c.cols + 16), -1);
  for (int64_t e = 0; e < c.num_experts; ++e) {
    const auto first = d.orders.begin() + e * (c.cols + 16);
    std::iota(first, first + c.cols, 0);
    std::shuffle(first, first + c.cols, random);
  }
  for (int64_t i = 0; i < c.rows && c.first_row + i < end; ++i) {
    const int64_t row = c.first_row + i, source = c.indexed ? d.row_index[row] : i;
    int64_t expert = 0;
    while (row >= d.offsets[expert + 1]) ++expert;
    for (int64_t col = 0; col < c.padded_cols; ++col) {
      std::byte* const to = d.expected.data() + (i * c.padded_cols + col) * size;
      if (col >= c.cols) {
        std::memset(to, 0, size);
        continue;
      }
      const int64_t from = d.orders[expert * (c.cols + 16) + col];
      std::memcpy(to, d.from.data() + (source * c.cols + from) * size, size);
    }
    for (int64_t s = 0; s < c.num_scales; ++s)
      d.expected_scales[i * c.num_scales + s] = d.from_scales[source * c.num_scales + s];
  }
  return d;
}

}  // namespace moracle
