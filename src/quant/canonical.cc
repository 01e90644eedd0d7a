#include "quant/canonical.h"

#include <cstring>

namespace moracle {

int64_t CanonicalMatrix::scale_rows() const {
  const int64_t rows = key.group.rows == GroupShape::kAll ? n : key.group.rows;
  return rows == 0 ? 0 : (n + rows - 1) / rows;
}

int64_t CanonicalMatrix::scale_cols() const {
  const int64_t cols = group_cols();
  return cols == 0 ? 0 : (k + cols - 1) / cols;
}

namespace {

// New row r is old row from(r); `width` elements per row.
template <class Range, class From>
void pick_rows(Range& values, int64_t rows, int64_t width, From from) {
  if (values.empty()) return;
  Range picked(rows * width);
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(values.begin() + from(r) * width, width, picked.begin() + r * width);
  }
  values = std::move(picked);
}

}  // namespace

void expand_scale_rows(CanonicalMatrix& m) {
  if (m.key.group.rows == 1 || m.scales.empty()) return;
  const int64_t rows = m.key.group.rows == GroupShape::kAll ? m.n : m.key.group.rows;
  const int64_t width = m.scale_cols();
  auto block = [&](int64_t r) { return r / rows; };
  pick_rows(m.scales, m.n, width, block);
  pick_rows(m.zero_points, m.n, width, block);
  pick_rows(m.minimums, m.n, width, block);
  m.key.group.rows = 1;
}

void deinterleave_rows(CanonicalMatrix& m) {
  const int64_t half = m.n / 2, bytes = m.row_bytes(), width = m.scale_cols();
  auto old_row = [&](int64_t r) { return r < half ? 2 * r : 2 * (r - half) + 1; };
  std::vector<std::byte> codes(m.n * bytes);
  for (int64_t r = 0; r < m.n; ++r)
    std::memcpy(codes.data() + r * bytes, m.codes.data() + old_row(r) * bytes, bytes);
  m.storage = std::move(codes);
  m.codes = m.storage;
  m.memory.reset();
  pick_rows(m.scales, m.n, width, old_row);
  pick_rows(m.zero_points, m.n, width, old_row);
  pick_rows(m.minimums, m.n, width, old_row);
  pick_rows(m.scale_factors, m.n, m.factor_cols(), old_row);
  pick_rows(m.minimum_factors, m.n, m.factor_cols(), old_row);
  pick_rows(m.bias, m.n, 1, old_row);
}

CanonicalMatrix float_rows(const CanonicalMatrix& floats, int64_t first, int64_t count) {
  CanonicalMatrix rows;
  rows.n = count;
  rows.k = floats.k;
  rows.key = floats.key;
  rows.codes = floats.codes.subspan(first * floats.row_bytes(), count * floats.row_bytes());
  if (!floats.bias.empty())
    rows.bias.assign(floats.bias.begin() + first, floats.bias.begin() + first + count);
  return rows;
}

namespace {

template <class T>
void append(std::vector<T>& whole, const std::vector<T>& slice) {
  whole.insert(whole.end(), slice.begin(), slice.end());
}

}  // namespace

void stack_rows(CanonicalMatrix& whole, int64_t first_row, const CanonicalMatrix& slice) {
  if (first_row == 0) whole.group_index = slice.group_index;
  std::memcpy(whole.storage.data() + first_row * whole.row_bytes(), slice.codes.data(),
              slice.codes.size());
  append(whole.scales, slice.scales);
  append(whole.zero_points, slice.zero_points);
  append(whole.minimums, slice.minimums);
  append(whole.scale_factors, slice.scale_factors);
  append(whole.minimum_factors, slice.minimum_factors);
  append(whole.bias, slice.bias);
}

}  // namespace moracle
