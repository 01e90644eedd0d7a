#include "layout/unpack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/scalar.h"
#include "base/try.h"
#include "layout/sorted_columns.h"
#include "layout/vnni16.h"

namespace moracle {
namespace unpack_layout {
namespace {

using namespace vnni16;

// The matrix of these rows, without its numbers.
CanonicalMatrix outline(const MatrixShape& shape, int64_t rows) {
  CanonicalMatrix m;
  m.n = rows;
  m.k = shape.k;
  m.key = shape.key;
  m.storage.resize(m.n * m.row_bytes());
  m.codes = m.storage;
  return m;
}

template <class Value>
Value value_at(const std::byte* at) {
  Value value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class Value>
void take(std::vector<Value>& values, size_t count, const std::byte* from) {
  values.resize(count);
  if (count > 0) std::memcpy(values.data(), from, count * sizeof(Value));
}

CanonicalMatrix of_canonical(const PackedRows& rows) {
  const MatrixShape& shape = *rows.shape;
  const std::byte* const expert = rows.expert;
  CanonicalMatrix m = outline(shape, rows.end - rows.begin);
  const Sections s = kCanonicalLayout.sections(shape);
  const size_t scales = shape.key.quantized() ? m.scale_rows() * m.scale_cols() : 0;
  // A scale of the whole matrix belongs to every range of rows.
  const int64_t block = shape.key.group.rows == GroupShape::kAll ? shape.n : shape.key.group.rows;
  const int64_t first = scales == 0 ? 0 : rows.begin / block * m.scale_cols();
  std::memcpy(m.storage.data(), expert + rows.begin * m.row_bytes(), m.storage.size());
  take(m.scales, scales, expert + s.scales + first * sizeof(float));
  take(m.zero_points, shape.key.symmetric ? 0 : scales, expert + s.zero_points + first);
  take(m.minimums, shape.key.minimums ? scales : 0, expert + s.minimums + first * sizeof(float));
  take(m.group_index, shape.group_index ? m.k : 0, expert + s.group_index);
  take(m.bias, shape.bias ? m.n : 0, expert + s.bias + rows.begin * sizeof(float));
  return m;
}

// The inverse of the order of eight 4-bit columns in a word: the low halves of four bytes first.
uint32_t columns_of(uint32_t word) {
  const auto gather = [](uint32_t bytes) {
    bytes = (bytes | bytes >> 4) & 0x00ff00ffu;
    return (bytes | bytes >> 8) & 0xffffu;
  };
  return gather(word & 0x0f0f0f0fu) | gather(word >> 4 & 0x0f0f0f0fu) << 16;
}

// Row blocks of a panel: word w of row r is 16 w + r.
void take_words(const MatrixShape& shape, const std::byte* codes, int64_t begin, int64_t end,
                CanonicalMatrix& m) {
  const int64_t row_bytes = m.row_bytes(), whole = row_bytes / 4;
  const bool nibbles = bits(shape.key.dtype) == 4;
  for (int64_t r = begin; r < end; ++r) {
    const std::byte* const row = codes + r / kRows * panel_bytes(shape) + r % kRows * 4;
    std::byte* const to = m.storage.data() + r * row_bytes;
    const auto word = [&](int64_t w) {
      const auto stored = value_at<uint32_t>(row + w * kRowBlockBytes);
      return nibbles ? columns_of(stored) : stored;
    };
    for (int64_t w = 0; w < whole; ++w) {
      const uint32_t value = word(w);
      std::memcpy(to + w * 4, &value, sizeof value);
    }
    if (whole * 4 == row_bytes) continue;
    const uint32_t value = word(whole);
    std::memcpy(to + whole * 4, &value, static_cast<size_t>(row_bytes - whole * 4));
  }
}

// Sets of codes: numbers in units of a few columns (vnni16.h).
void take_code_set(const MatrixShape& shape, const std::byte* codes, int64_t begin, int64_t end,
                   CanonicalMatrix& m) {
  const CodeSet set = shape.key.codes;
  const Unit unit = unit_of(shape);
  const int high = code_bits(set) - 4;
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t c = 0; c < m.k; ++c) {
      const int64_t in = c % unit.cols, block = in / 4;
      const std::byte* const at = codes + r / kRows * panel_bytes(shape) +
                                  c / unit.cols * unit.blocks * kRowBlockBytes + r % kRows * 4 +
                                  c % 4;
      int number = static_cast<int>(at[in / 8 * kRowBlockBytes]) >> (block % 2 * 4) & 15;
      if (high > 0) {
        const int upper = static_cast<int>(at[(unit.blocks - 1) * kRowBlockBytes]);
        number |= (upper >> (block * high) & ((1 << high) - 1)) << 4;
      }
      m.storage[r * m.k + c] = static_cast<std::byte>(code_of(set, number));
    }
  }
}

// Reads [panel, group, lanes] of stored values into [scale_rows, groups].
template <class Stored, class Convert>
void take_by_group(const MatrixShape& shape, const std::byte* from, int64_t lanes, Convert convert,
                   const CanonicalMatrix& m, auto& values) {
  const int64_t groups = num_groups(shape), rows = m.scale_rows();
  const int64_t block = shape.key.group.rows == GroupShape::kAll ? m.n : shape.key.group.rows;
  values.resize(rows * groups);
  for (int64_t b = 0; b < rows; ++b) {
    const int64_t r = b * block, lane = lanes == 1 ? 0 : r % kRows;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = (r / kRows * groups + g) * lanes + lane;
      values[b * groups + g] =
          convert(value_at<Stored>(from + at * static_cast<int64_t>(sizeof(Stored))));
    }
  }
}

// Reads integers and their factors: values [n, groups], factors [n, factors].
void take_steps(const MatrixShape& shape, const std::byte* from, int64_t rows,
                std::vector<float>& values, std::vector<float>& factors) {
  const int64_t groups = num_groups(shape), columns = num_factors(shape);
  values.resize(rows * groups);
  factors.resize(rows * columns);
  for (int64_t r = 0; r < rows; ++r) {
    const std::byte* const panel = from + r / kRows * step_bytes(shape);
    for (int64_t f = 0; f < columns; ++f)
      factors[r * columns + f] =
          factor_unit(shape.key.codes) *
          f16_to_float(value_at<uint16_t>(panel + (f * kRows + r % kRows) * 2));
    for (int64_t g = 0; g < groups; ++g) {
      const auto step = value_at<int8_t>(panel + factor_bytes(shape) + g * kRows + r % kRows);
      values[r * groups + g] =
          static_cast<float>(step) * factors[r * columns + g * group_cols(shape) / kFactorCols];
    }
  }
}

// Scales, zero points and minimums of rows that begin with panel `panel`.
void take_scales(const MatrixShape& shape, const Sections& s, const std::byte* expert,
                 int64_t panel, CanonicalMatrix& m) {
  const QuantKey& key = shape.key;
  const auto same = [](auto value) { return value; };
  const std::byte* const scales = expert + s.scales + panel * scale_bytes(shape);
  const std::byte* const minimums = expert + s.minimums + panel * minimum_bytes(shape);
  if (scale_is_step(shape)) {
    take_steps(shape, scales, m.n, m.scales, m.scale_factors);
    if (key.minimums) take_steps(shape, minimums, m.n, m.minimums, m.minimum_factors);
    if (!key.symmetric) m.zero_points.assign(m.scales.size(), kStepZeroPoint);
    return;
  }
  const int64_t lanes = scale_lanes(shape);
  if (key.scale_dtype == DType::kF16)
    take_by_group<uint16_t>(shape, scales, lanes, f16_to_float, m, m.scales);
  else if (scale_is_exponent(shape))
    take_by_group<uint8_t>(
        shape, scales, lanes,
        [](uint8_t e) { return std::bit_cast<float>(static_cast<uint32_t>(e) << 23); }, m,
        m.scales);
  else
    take_by_group<float>(shape, scales, lanes, same, m, m.scales);
  if (key.minimums)
    take_by_group<float>(shape, minimums, kRows, same, m, m.minimums);
  else if (!key.symmetric)
    take_by_group<int8_t>(shape, expert + s.zero_points + panel * num_groups(shape) * kRows, kRows,
                          same, m, m.zero_points);
}

// Moves column j of a sorted matrix to column order[j]; the groups follow.
template <class Code>
void scatter(const CanonicalMatrix& sorted, const std::vector<int32_t>& order, std::byte* to) {
  for (int64_t r = 0; r < sorted.n; ++r) {
    const auto* from = reinterpret_cast<const Code*>(sorted.codes.data() + r * sorted.row_bytes());
    auto* row = reinterpret_cast<Code*>(to + r * sorted.row_bytes());
    for (size_t j = 0; j < order.size(); ++j) row[order[j]] = from[j];
  }
}

void scatter_nibbles(const CanonicalMatrix& sorted, const std::vector<int32_t>& order,
                     std::byte* to) {
  for (int64_t r = 0; r < sorted.n; ++r) {
    const int64_t row = r * sorted.row_bytes();
    for (size_t j = 0; j < order.size(); ++j) {
      const auto code = static_cast<unsigned>(sorted.codes[row + j / 2]) >> (j % 2 * 4) & 15;
      to[row + order[j] / 2] |= static_cast<std::byte>(code << (order[j] % 2 * 4));
    }
  }
}

void unsort_columns(const MatrixShape& shape, const std::byte* from, CanonicalMatrix& m) {
  std::vector<int32_t> order;
  take(order, m.k, from);
  std::vector<std::byte> codes(m.storage.size());
  if (bits(m.key.dtype) == 4)
    scatter_nibbles(m, order, codes.data());
  else
    scatter<uint8_t>(m, order, codes.data());
  m.group_index.resize(m.k);
  for (int64_t j = 0; j < m.k; ++j)
    m.group_index[order[j]] = static_cast<int32_t>(j / group_cols(shape));
  m.storage = std::move(codes);
  m.codes = m.storage;
}

CanonicalMatrix of_vnni16(const PackedRows& rows, ThreadPool& pool) {
  const MatrixShape& shape = *rows.shape;
  CanonicalMatrix m = outline(shape, rows.end - rows.begin);
  const Sections s = kVnni16Layout.sections(shape);
  const int64_t panel = rows.begin / kRows;
  const std::byte* const codes = rows.expert + panel * panel_bytes(shape);
  const bool words = shape.key.codes == CodeSet::kAny;
  pool.split(m.n, [&](int64_t begin, int64_t end) {
    words ? take_words(shape, codes, begin, end, m) : take_code_set(shape, codes, begin, end, m);
  });
  if (shape.key.quantized()) take_scales(shape, s, rows.expert, panel, m);
  if (shape.group_index) unsort_columns(shape, rows.expert + s.group_index, m);
  take(m.bias, shape.bias ? m.n : 0, rows.expert + s.bias + rows.begin * sizeof(float));
  return m;
}

}  // namespace
}  // namespace unpack_layout

bool unpacks(const Layout& layout) {
  return &layout == &kCanonicalLayout || &layout == &kVnni16Layout;
}

int64_t row_step(const MatrixShape& shape) {
  const int64_t block = shape.key.quantized() ? shape.key.group.rows : 1;
  return block <= 1 ? kRowStep : std::lcm(kRowStep, block);
}

CanonicalMatrix unpack(const PackedRows& rows, ThreadPool& pool) {
  return rows.layout == &kCanonicalLayout ? unpack_layout::of_canonical(rows)
                                          : unpack_layout::of_vnni16(rows, pool);
}

bool repacks(const Layout& from, const MatrixShape& from_shape, const Layout& to,
             const MatrixShape& to_shape) {
  MatrixShape same = to_shape;
  same.key.codes = from_shape.key.codes;
  if (same != from_shape || !holds(to, to_shape.key.dtype)) return false;
  if (&from == &to && from_shape == to_shape) return true;
  const bool wants_factors = &to == &kVnni16Layout && vnni16::scale_is_step(to_shape);
  return unpacks(from) && !(wants_factors && &from == &kCanonicalLayout);
}

Status repack(const PackedRows& rows, const Layout& to, const MatrixShape& to_shape,
              ThreadPool& pool, std::byte* out) {
  if (rows.layout == &to && *rows.shape == to_shape) {
    // The whole expert with its first rows: sections are not contiguous by rows.
    if (rows.begin == 0) std::memcpy(out, rows.expert, to.sections(to_shape).bytes);
    return {};
  }
  CanonicalMatrix m = unpack(rows, pool);
  if (to.sorts_columns && to_shape.group_index) {
    MORACLE_TRY(m, sort_columns(m));
  }
  pack(to, to_shape, m, rows.begin, pool, out);
  return {};
}

}  // namespace moracle
