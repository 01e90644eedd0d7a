#include "quant/cut.h"

#include <algorithm>
#include <cstring>

namespace moracle {
namespace {

template <class T>
std::vector<T> rows_in(const std::vector<T>& all, int64_t cols, int64_t first, int64_t count) {
  if (all.empty()) return {};
  const auto begin = all.begin() + first * cols;
  return {begin, begin + count * cols};
}

// Repeats each row `times` times, up to `rows` rows.
template <class T>
std::vector<T> repeat_rows(const std::vector<T>& all, int64_t cols, int64_t times, int64_t rows) {
  if (all.empty()) return {};
  std::vector<T> repeated;
  repeated.reserve(static_cast<size_t>(rows * cols));
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = all.begin() + row / times * cols;
    repeated.insert(repeated.end(), begin, begin + cols);
  }
  return repeated;
}

template <class T>
std::vector<T> columns_in(const std::vector<T>& all, int64_t cols, int64_t first, int64_t count) {
  std::vector<T> some;
  for (auto row = all.begin(); row != all.end(); row += cols)
    some.insert(some.end(), row + first, row + first + count);
  return some;
}

// Appends the columns of each row of `some` to those of `all`, which begin at column `first`.
template <class T>
void put_columns(const std::vector<T>& some, int64_t count, int64_t first, int64_t cols,
                 std::vector<T>& all) {
  if (some.empty()) return;
  const int64_t rows = static_cast<int64_t>(some.size()) / count;
  all.resize(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r)
    std::copy_n(some.begin() + r * count, count, all.begin() + r * cols + first);
}

}  // namespace

CanonicalMatrix cut_rows(CanonicalMatrix&& matrix, int64_t first, int64_t count) {
  CanonicalMatrix cut = std::move(matrix);
  const int64_t block = cut.key.group.rows, per_scale = block > 0 ? block : cut.n;
  const int64_t rows = (count + per_scale - 1) / per_scale, cols = cut.scale_cols();
  cut.codes = cut.codes.subspan(first * cut.row_bytes(), count * cut.row_bytes());
  cut.scales = rows_in(cut.scales, cols, first / per_scale, rows);
  cut.zero_points = rows_in(cut.zero_points, cols, first / per_scale, rows);
  cut.minimums = rows_in(cut.minimums, cols, first / per_scale, rows);
  cut.scale_factors = rows_in(cut.scale_factors, cut.factor_cols(), first, count);
  cut.minimum_factors = rows_in(cut.minimum_factors, cut.factor_cols(), first, count);
  cut.bias = rows_in(cut.bias, 1, first, count);
  cut.n = count;
  return cut;
}

CanonicalMatrix divide_blocks(CanonicalMatrix&& matrix, int64_t rows) {
  CanonicalMatrix divided = std::move(matrix);
  const int64_t times = divided.key.group.rows / rows, count = (divided.n + rows - 1) / rows;
  const int64_t cols = divided.scale_cols();
  divided.scales = repeat_rows(divided.scales, cols, times, count);
  divided.zero_points = repeat_rows(divided.zero_points, cols, times, count);
  divided.minimums = repeat_rows(divided.minimums, cols, times, count);
  divided.key.group.rows = rows;
  return divided;
}

QuantKey cut_key(QuantKey key, int64_t k, int64_t first, int64_t count) {
  const bool whole = first % kFactorCols == 0 && (count % kFactorCols == 0 || first + count == k);
  if (key.scale_dtype == DType::kI8 && !whole) key.scale_dtype = DType::kF32;
  return key;
}

CanonicalMatrix cut_columns(const CanonicalMatrix& matrix, int64_t first, int64_t count,
                            bool keeps_bias) {
  CanonicalMatrix cut;
  cut.n = matrix.n;
  cut.k = count;
  cut.key = matrix.key;
  const int64_t from = first * bits(cut.key.dtype) / 8;
  cut.storage.resize(cut.n * cut.row_bytes());
  for (int64_t r = 0; r < cut.n; ++r) {
    std::memcpy(cut.storage.data() + r * cut.row_bytes(),
                matrix.codes.data() + r * matrix.row_bytes() + from, cut.row_bytes());
  }
  cut.codes = cut.storage;
  const int64_t cols = matrix.scale_cols(), group = matrix.group_cols();
  const int64_t first_group = cols == 1 ? 0 : first / group;
  const int64_t groups = cols == 1 ? 1 : (count + group - 1) / group;
  cut.scales = columns_in(matrix.scales, cols, first_group, groups);
  cut.zero_points = columns_in(matrix.zero_points, cols, first_group, groups);
  cut.minimums = columns_in(matrix.minimums, cols, first_group, groups);
  cut.key = cut_key(matrix.key, matrix.k, first, count);
  if (cut.key.scale_dtype == DType::kI8) {
    const int64_t all = matrix.factor_cols(), from_factor = first / kFactorCols;
    cut.scale_factors = columns_in(matrix.scale_factors, all, from_factor, cut.factor_cols());
    cut.minimum_factors = columns_in(matrix.minimum_factors, all, from_factor, cut.factor_cols());
  }
  cut.bias = matrix.bias;
  if (!keeps_bias) std::fill(cut.bias.begin(), cut.bias.end(), 0.0f);
  return cut;
}

CanonicalMatrix reorder_columns(const CanonicalMatrix& matrix, int64_t size,
                                const std::function<int64_t(int64_t run)>& stored) {
  CanonicalMatrix all;
  all.n = matrix.n;
  all.k = matrix.k;
  all.key = cut_key(matrix.key, matrix.k, size, size);
  all.bias = matrix.bias;
  all.storage.resize(all.n * all.row_bytes());
  const int64_t cols = matrix.scale_cols(), groups = cols == 1 ? 1 : size / matrix.group_cols();
  for (int64_t run = 0; run < matrix.k / size; ++run) {
    const CanonicalMatrix cut = cut_columns(matrix, stored(run) * size, size, true);
    const int64_t bytes = cut.row_bytes();
    for (int64_t r = 0; r < all.n; ++r)
      std::memcpy(all.storage.data() + r * all.row_bytes() + run * bytes,
                  cut.codes.data() + r * bytes, bytes);
    const int64_t first = cols == 1 ? 0 : run * groups;
    put_columns(cut.scales, groups, first, cols, all.scales);
    put_columns(cut.zero_points, groups, first, cols, all.zero_points);
    put_columns(cut.minimums, groups, first, cols, all.minimums);
    if (all.key.scale_dtype != DType::kI8) continue;
    const int64_t factors = cut.factor_cols(), first_factor = run * factors;
    put_columns(cut.scale_factors, factors, first_factor, all.factor_cols(), all.scale_factors);
    put_columns(cut.minimum_factors, factors, first_factor, all.factor_cols(), all.minimum_factors);
  }
  all.codes = all.storage;
  return all;
}

}  // namespace moracle
