#include "layout/vnni16.h"

#include <bit>
#include <cstring>

#include "layout/by_group.h"
#include "layout/sections.h"

namespace moracle {
namespace {

using namespace vnni16;

constexpr DType kHolds[] = {DType::kF32, DType::kF16,    DType::kBF16,  DType::kI8,
                            DType::kI4,  DType::kF8E4M3, DType::kF4E2M1};

Sections sections(const MatrixShape& shape) {
  const int64_t panels = num_panels(shape);
  const int64_t groups = shape.key.quantized() ? panels * num_groups(shape) : 0;
  return lay_out(panels * panel_bytes(shape), groups * scale_lanes(shape) * scale_bytes(shape),
                 shape.key.symmetric ? 0 : groups * kRows,
                 shape.group_index ? shape.k * sizeof(int32_t) : 0,
                 shape.bias ? panels * kRows * sizeof(float) : 0);
}

int64_t cols(const MatrixShape& shape) {
  return shape.k;
}

int64_t code_bit(const MatrixShape& shape, int64_t r, int64_t c) {
  const int64_t width = bits(shape.key.dtype), line = line_cols(shape.key.dtype), in = c % line;
  const int64_t row =
      (r / kRows) * panel_bytes(shape) * 8 + (c / line) * kLineBytes * 8 + (r % kRows) * 32;
  return row + (width == 4 ? in % 4 * 8 + in / 4 * 4 : in * width);
}

// Bytes c%4 of a line take columns c and c + 4, which lie in neighbouring bytes of a row.
void pack_nibbles(const CanonicalMatrix& m, const MatrixShape& shape, std::byte* out) {
  for (int64_t r = 0; r < m.n; ++r) {
    std::byte* panel = out + (r / kRows) * panel_bytes(shape) + r % kRows * 4;
    const std::byte* row = m.codes.data() + r * m.row_bytes();
    for (int64_t c = 0; c < m.k; ++c) {
      const std::byte code = (row[c / 2] >> (c % 2 * 4)) & std::byte{15};
      panel[c / 8 * kLineBytes + c % 4] |= code << (c / 4 % 2 * 4);
    }
  }
}

// Four bytes of a row's columns at a time.
void pack_bytes(const CanonicalMatrix& m, const MatrixShape& shape, std::byte* out) {
  const int64_t row_bytes = m.row_bytes();
  for (int64_t r = 0; r < m.n; ++r) {
    std::byte* panel = out + (r / kRows) * panel_bytes(shape) + r % kRows * 4;
    const std::byte* row = m.codes.data() + r * row_bytes;
    int64_t b = 0;
    for (; b + 4 <= row_bytes; b += 4) std::memcpy(panel + b / 4 * kLineBytes, row + b, 4);
    if (b < row_bytes) std::memcpy(panel + b / 4 * kLineBytes, row + b, row_bytes - b);
  }
}

void pack(const CanonicalMatrix& m, std::byte* out) {
  const MatrixShape shape{m.n, m.k, m.key, !m.group_index.empty(), !m.bias.empty()};
  const Sections s = sections(shape);
  std::memset(out, 0, s.bytes);
  if (bits(m.key.dtype) == 4)
    pack_nibbles(m, shape, out + s.codes);
  else
    pack_bytes(m, shape, out + s.codes);
  const int64_t groups = num_groups(shape);
  auto exponent = [](float scale) {
    return static_cast<uint8_t>(std::bit_cast<uint32_t>(scale) >> 23);
  };
  auto same = [](auto value) { return value; };
  if (scale_is_exponent(shape))
    pack_by_group(m.scales, m, groups, kRows, scale_lanes(shape), exponent, out + s.scales);
  else
    pack_by_group(m.scales, m, groups, kRows, scale_lanes(shape), same, out + s.scales);
  pack_by_group(m.zero_points, m, groups, kRows, kRows, same, out + s.zero_points);
  auto put = [&](const auto& values, size_t at) {
    if (!values.empty()) std::memcpy(out + at, values.data(), values.size() * sizeof(values[0]));
  };
  put(m.group_index, s.group_index);
  put(m.bias, s.bias);
}

}  // namespace

const Layout kVnni16Layout = {
    .name = "vnni16",
    .summary = "lines of 4 bytes of columns for 16 rows, which are tiles of AMX sixteen at a time",
    .holds = kHolds,
    .sections = sections,
    .read_cols = cols,
    .code_bit = code_bit,
    .pack = pack,
};

}  // namespace moracle
