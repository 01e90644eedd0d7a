#include "quant/widen.h"

#include <algorithm>
#include <numeric>

#include "quant/code_set.h"

namespace moracle {
namespace {

bool is_integer(const QuantKey& key) {
  return (key.dtype == DType::kI4 || key.dtype == DType::kI8) && key.group.rows == 1;
}

// The largest group size along K that divides both. One group for all columns splits into groups of
// any size.
int64_t common_group(int64_t a, int64_t b) {
  if (a == GroupShape::kAll) return b;
  if (b == GroupShape::kAll) return a;
  return std::gcd(a, b);
}

// True if the scales of both can keep their type. With kI8 the zero points of all groups are equal.
bool same_scales(const QuantKey& a, const QuantKey& b) {
  return a.scale_dtype == b.scale_dtype &&
         (a.scale_dtype != DType::kI8 || (a.symmetric == b.symmetric && a.minimums == b.minimums));
}

// int4 codes as bytes.
void widen_codes(CanonicalMatrix& m) {
  std::vector<std::byte> codes(m.n * m.k);
  for (int64_t r = 0; r < m.n; ++r) {
    const std::byte* row = m.codes.data() + r * m.row_bytes();
    for (int64_t c = 0; c < m.k; ++c) {
      const int nibble = static_cast<int>(row[c / 2] >> (4 * (c % 2)) & std::byte{15});
      codes[r * m.k + c] = static_cast<std::byte>(nibble < 8 ? nibble : nibble - 16);
    }
  }
  m.storage = std::move(codes);
  m.codes = m.storage;
  m.memory.reset();
  m.key.dtype = DType::kI8;
}

// Each new group j repeats the value of the old group that holds it.
template <class Values>
void split_groups(Values& values, int64_t rows, int64_t old_cols, int64_t cols, int64_t ratio) {
  if (values.empty()) return;
  Values split(rows * cols);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < cols; ++j) split[r * cols + j] = values[r * old_cols + j / ratio];
  }
  values = std::move(split);
}

}  // namespace

std::optional<Scheme> common_scheme(const Scheme& a, const Scheme& b) {
  if (a == b) return a;
  if (a.activation != b.activation || !is_integer(a.weight) || !is_integer(b.weight)) return {};
  Scheme common = a;
  if (b.weight.dtype == DType::kI8) common.weight.dtype = DType::kI8;
  common.weight.group.cols = common_group(a.weight.group.cols, b.weight.group.cols);
  common.weight.symmetric = a.weight.symmetric && b.weight.symmetric;
  common.weight.minimums = a.weight.minimums || b.weight.minimums;
  if (!same_scales(a.weight, b.weight)) common.weight.scale_dtype = DType::kF32;
  if (a.weight.codes != b.weight.codes) {
    common.weight.codes = CodeSet::kAny;
    if (factor_unit(a.weight.codes) != factor_unit(b.weight.codes))
      common.weight.scale_dtype = DType::kF32;
  }
  return common;
}

void widen(CanonicalMatrix& m, const QuantKey& key) {
  if (m.key.dtype == DType::kI4 && key.dtype == DType::kI8) widen_codes(m);
  const int64_t old_size = m.group_cols(), old_cols = m.scale_cols();
  const bool whole = m.key.group.cols == GroupShape::kAll;
  m.key = key;
  const int64_t cols = m.scale_cols();
  // If the old matrix has one group, every new group lies in group 0.
  const int64_t ratio = whole ? std::max<int64_t>(cols, 1) : old_size / m.group_cols();
  if (cols != old_cols) {
    split_groups(m.scales, m.n, old_cols, cols, ratio);
    split_groups(m.zero_points, m.n, old_cols, cols, ratio);
    split_groups(m.minimums, m.n, old_cols, cols, ratio);
    for (int32_t& group : m.group_index) group = static_cast<int32_t>(group * ratio);
  }
  if (key.scale_dtype != DType::kI8) {
    m.scale_factors.clear();
    m.minimum_factors.clear();
  }
  if (!key.symmetric && m.zero_points.empty()) m.zero_points.assign(m.scales.size(), 0);
  if (key.minimums && m.minimums.empty()) m.minimums.assign(m.scales.size(), 0.0f);
}

}  // namespace moracle
