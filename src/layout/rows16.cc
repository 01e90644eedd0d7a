// Rows of 4-bit codes, two columns in a byte, the even one in the low half: the order of vLLM's
// W4A16 on Intel GPUs. Integer codes are stored with 8 added, so that they are unsigned. A lane of
// a subgroup reads 16 bytes of its row at once.
//
//   code         row r, column c at nibble r·K + c      K: columns padded to 32
//   scales       r·groups + g      f32, because all kernels compute with f32
//   zero points  r·groups + g      i8
//
// Rows are padded to 16. Padding has code 0 and scale 0.
#include <algorithm>
#include <cstring>

#include "layout/groups.h"
#include "layout/sections.h"

namespace moracle {
namespace rows16_layout {
namespace {

constexpr DType kHolds[] = {DType::kI4, DType::kF4E2M1};
constexpr int64_t kCols = 32;  // 16 bytes

int64_t padded(int64_t count, int64_t step) {
  return (count + step - 1) / step * step;
}
int64_t row_bytes(const MatrixShape& shape) {
  return padded(shape.k, kCols) / 2;
}
// The two codes in a byte, each with 8 added.
uint8_t offset(DType type) {
  return type == DType::kI4 ? 0x88 : 0;
}

Sections sections(const MatrixShape& shape) {
  const int64_t rows = padded(shape.n, kRowStep), scales = rows * num_groups(shape);
  return lay_out(rows * row_bytes(shape), scales * sizeof(float), shape.key.symmetric ? 0 : scales,
                 0, shape.group_index ? shape.k * sizeof(int32_t) : 0,
                 shape.bias ? rows * sizeof(float) : 0);
}

void pack_codes(const MatrixShape& shape, const CanonicalMatrix& m, int64_t first_row,
                int64_t begin, int64_t end, std::byte* out) {
  const int64_t bytes = row_bytes(shape), own = m.row_bytes();
  const auto flips = std::byte{offset(shape.key.dtype)};
  for (int64_t r = begin; r < padded(end, kRowStep); ++r) {
    std::byte* const to = out + (first_row + r) * bytes;
    const std::byte* const from = m.codes.data() + r * own;
    const int64_t there = r < end ? own : 0;
    for (int64_t at = 0; at < there; ++at) to[at] = from[at] ^ flips;
    std::fill(to + there, to + bytes, flips);
    if (there > 0 && shape.k % 2 != 0) to[there - 1] = (from[there - 1] & std::byte{15}) ^ flips;
  }
}

// Copies values [n or blocks of n, groups] of a slice, one row of values per matrix row.
template <class Value>
void put_rows(const std::vector<Value>& values, const CanonicalMatrix& m, int64_t first_row,
              int64_t groups, std::byte* out) {
  if (values.empty()) return;
  const int64_t block = m.key.group.rows == GroupShape::kAll ? m.n : m.key.group.rows;
  const int64_t bytes = groups * static_cast<int64_t>(sizeof(Value));
  for (int64_t r = 0; r < m.n; ++r)
    std::memcpy(out + (first_row + r) * bytes, values.data() + r / block * groups, bytes);
}

void pack_beside(const MatrixShape& shape, const CanonicalMatrix& m, int64_t first_row,
                 std::byte* out) {
  const Sections s = sections(shape);
  if (first_row == 0) {
    const size_t codes = padded(shape.n, kRowStep) * row_bytes(shape);
    std::memset(out + codes, 0, s.bytes - codes);
    put(m.group_index, out + s.group_index);
  }
  put_rows(m.scales, m, first_row, num_groups(shape), out + s.scales);
  put_rows(m.zero_points, m, first_row, num_groups(shape), out + s.zero_points);
  put(m.bias, out + s.bias + first_row * sizeof(float));
}

}  // namespace
}  // namespace rows16_layout

const Layout kRows16Layout = {
    .name = "rows16",
    .summary = "rows of 4-bit codes, 32 columns in one load; integers are stored with 8 added",
    .holds = rows16_layout::kHolds,
    .sorts_columns = true,
    .i4_offset = 8,
    .sections = rows16_layout::sections,
    .read_cols = [](const MatrixShape& shape) { return shape.k; },
    .code_bit = [](const MatrixShape& shape, int64_t r,
                   int64_t c) { return (r * rows16_layout::row_bytes(shape) * 2 + c) * 4; },
    .pack_codes = rows16_layout::pack_codes,
    .pack_beside = rows16_layout::pack_beside,
};

}  // namespace moracle
