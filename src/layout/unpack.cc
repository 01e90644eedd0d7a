#include "layout/unpack.h"

#include <bit>
#include <cstring>

#include "base/scalar.h"
#include "base/try.h"
#include "layout/sorted_columns.h"
#include "layout/vnni16.h"

namespace moracle {
namespace unpack_layout {
namespace {

using namespace vnni16;

// The matrix without its numbers.
CanonicalMatrix outline(const MatrixShape& shape) {
  CanonicalMatrix m;
  m.n = shape.n;
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

CanonicalMatrix of_canonical(const MatrixShape& shape, const std::byte* expert) {
  CanonicalMatrix m = outline(shape);
  const Sections s = kCanonicalLayout.sections(shape);
  const size_t scales = shape.key.quantized() ? m.scale_rows() * m.scale_cols() : 0;
  std::memcpy(m.storage.data(), expert, m.storage.size());
  take(m.scales, scales, expert + s.scales);
  take(m.zero_points, shape.key.symmetric ? 0 : scales, expert + s.zero_points);
  take(m.minimums, shape.key.minimums ? scales : 0, expert + s.minimums);
  take(m.group_index, shape.group_index ? m.k : 0, expert + s.group_index);
  take(m.bias, shape.bias ? m.n : 0, expert + s.bias);
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
void take_words(const MatrixShape& shape, const std::byte* codes, CanonicalMatrix& m) {
  const int64_t row_bytes = m.row_bytes();
  const bool nibbles = bits(shape.key.dtype) == 4;
  for (int64_t r = 0; r < m.n; ++r) {
    const std::byte* const row = codes + r / kRows * panel_bytes(shape) + r % kRows * 4;
    std::byte* const to = m.storage.data() + r * row_bytes;
    for (int64_t at = 0; at < row_bytes; at += 4) {
      auto word = value_at<uint32_t>(row + at / 4 * kRowBlockBytes);
      if (nibbles) word = columns_of(word);
      std::memcpy(to + at, &word, static_cast<size_t>(std::min<int64_t>(4, row_bytes - at)));
    }
  }
}

// Sets of codes: numbers in units of a few columns (vnni16.h).
void take_code_set(const MatrixShape& shape, const std::byte* codes, CanonicalMatrix& m) {
  const CodeSet set = shape.key.codes;
  const Unit unit = unit_of(shape);
  const int high = code_bits(set) - 4;
  for (int64_t r = 0; r < m.n; ++r) {
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
void take_steps(const MatrixShape& shape, const std::byte* from, std::vector<float>& values,
                std::vector<float>& factors) {
  const int64_t groups = num_groups(shape), columns = num_factors(shape);
  values.resize(shape.n * groups);
  factors.resize(shape.n * columns);
  for (int64_t r = 0; r < shape.n; ++r) {
    const std::byte* const panel = from + r / kRows * step_bytes(shape);
    for (int64_t f = 0; f < columns; ++f)
      factors[r * columns + f] =
          f16_to_float(value_at<uint16_t>(panel + (f * kRows + r % kRows) * 2));
    for (int64_t g = 0; g < groups; ++g) {
      const auto step = value_at<int8_t>(panel + factor_bytes(shape) + g * kRows + r % kRows);
      values[r * groups + g] =
          static_cast<float>(step) * factors[r * columns + g * group_cols(shape) / kFactorCols];
    }
  }
}

void take_scales(const MatrixShape& shape, const Sections& s, const std::byte* expert,
                 CanonicalMatrix& m) {
  const QuantKey& key = shape.key;
  const auto same = [](auto value) { return value; };
  if (scale_is_step(shape)) {
    take_steps(shape, expert + s.scales, m.scales, m.scale_factors);
    if (key.minimums) take_steps(shape, expert + s.minimums, m.minimums, m.minimum_factors);
    if (!key.symmetric) m.zero_points.assign(m.scales.size(), kStepZeroPoint);
    return;
  }
  const int64_t lanes = scale_lanes(shape);
  const std::byte* const scales = expert + s.scales;
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
    take_by_group<float>(shape, expert + s.minimums, kRows, same, m, m.minimums);
  else if (!key.symmetric)
    take_by_group<int8_t>(shape, expert + s.zero_points, kRows, same, m, m.zero_points);
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

CanonicalMatrix of_vnni16(const MatrixShape& shape, const std::byte* expert) {
  CanonicalMatrix m = outline(shape);
  const Sections s = kVnni16Layout.sections(shape);
  if (shape.key.codes == CodeSet::kAny)
    take_words(shape, expert, m);
  else
    take_code_set(shape, expert, m);
  if (shape.key.quantized()) take_scales(shape, s, expert, m);
  if (shape.group_index) unsort_columns(shape, expert + s.group_index, m);
  take(m.bias, shape.bias ? m.n : 0, expert + s.bias);
  return m;
}

}  // namespace
}  // namespace unpack_layout

bool unpacks(const Layout& layout) {
  return &layout == &kCanonicalLayout || &layout == &kVnni16Layout;
}

CanonicalMatrix unpack(const Layout& layout, const MatrixShape& shape, const std::byte* expert) {
  return &layout == &kCanonicalLayout ? unpack_layout::of_canonical(shape, expert)
                                      : unpack_layout::of_vnni16(shape, expert);
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

Status repack(const Layout& from, const MatrixShape& from_shape, const std::byte* expert,
              const Layout& to, const MatrixShape& to_shape, std::byte* out) {
  if (&from == &to && from_shape == to_shape) {
    std::memcpy(out, expert, to.sections(to_shape).bytes);
    return {};
  }
  CanonicalMatrix m = unpack(from, from_shape, expert);
  if (to.sorts_columns && to_shape.group_index) {
    MORACLE_TRY(m, sort_columns(m));
  }
  to.pack_codes(to_shape, m, 0, 0, m.n, out);
  to.pack_beside(to_shape, m, 0, out);
  return {};
}

}  // namespace moracle
