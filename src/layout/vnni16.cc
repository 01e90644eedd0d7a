#include "layout/vnni16.h"

#include <bit>
#include <cstring>

#include "layout/pack_scales.h"
#include "layout/panels.h"
#include "layout/sections.h"

namespace moracle {
namespace vnni16_layout {
namespace {

using namespace vnni16;

constexpr DType kHolds[] = {DType::kF32, DType::kF16,    DType::kBF16,  DType::kI8,
                            DType::kI4,  DType::kF8E4M3, DType::kF4E2M1};

Sections sections(const MatrixShape& shape) {
  const int64_t panels = num_panels(shape);
  const int64_t groups = shape.key.quantized() ? panels * num_groups(shape) : 0;
  return lay_out(panels * panel_bytes(shape), groups * scale_lanes(shape) * scale_bytes(shape),
                 panels_have_zero_points(shape) ? groups * kRows : 0,
                 shape.key.minimums ? groups * kRows * sizeof(float) : 0,
                 shape.group_index ? shape.k * sizeof(int32_t) : 0,
                 shape.bias ? panels * kRows * sizeof(float) : 0);
}

int64_t cols(const MatrixShape& shape) {
  return shape.k;
}

int64_t code_bit(const MatrixShape& shape, int64_t r, int64_t c) {
  const int64_t width = bits(shape.key.dtype), block = block_cols(shape.key.dtype), in = c % block;
  const int64_t row =
      (r / kRows) * panel_bytes(shape) * 8 + (c / block) * kRowBlockBytes * 8 + (r % kRows) * 32;
  return row + (width == 4 ? in % 4 * 8 + in / 4 * 4 : in * width);
}

// Reorders eight 4-bit columns from canonical form: the first four go to the low halves of four
// bytes, the others to the high halves.
uint32_t halves(uint32_t columns) {
  const auto spread = [](uint32_t four) {
    four = (four | four << 8) & 0x00ff00ffu;
    return (four | four << 4) & 0x0f0f0f0fu;
  };
  return spread(columns & 0xffffu) | spread(columns >> 16) << 4;
}

void pack_codes(const MatrixShape& shape, const CanonicalMatrix& m, int64_t first_row,
                int64_t begin, int64_t end, std::byte* out) {
  out += (first_row + begin) / kRows * panel_bytes(shape);
  const int64_t units = num_blocks(shape);
  if (bits(shape.key.dtype) == 4)
    pack_panels<uint32_t>(m, begin, end, units, halves, out);
  else
    pack_panels<uint32_t>(
        m, begin, end, units, [](uint32_t unit) { return unit; }, out);
}

void pack_beside(const MatrixShape& shape, const CanonicalMatrix& m, int64_t first_row,
                 std::byte* out) {
  const Sections s = sections(shape);
  if (first_row == 0) {
    const size_t codes = num_panels(shape) * panel_bytes(shape);
    std::memset(out + codes, 0, s.bytes - codes);
    put(m.group_index, out + s.group_index);
  }
  const int64_t groups = num_groups(shape), lanes = scale_lanes(shape);
  pack_scales(m, first_row, groups, lanes, scale_is_exponent(shape), out + s.scales);
  if (shape.key.minimums)
    pack_minimums(m, first_row, groups, out + s.minimums);
  else
    pack_zero_points(m, first_row, groups, out + s.zero_points);
  put(m.bias, out + s.bias + first_row * sizeof(float));
}

}  // namespace
}  // namespace vnni16_layout

const Layout kVnni16Layout = {
    .name = "vnni16",
    .summary = "row blocks of 16 rows x 4 bytes of columns; sixteen form one AMX tile",
    .holds = vnni16_layout::kHolds,
    .sorts_columns = true,
    .holds_minimums = true,
    .sections = vnni16_layout::sections,
    .read_cols = vnni16_layout::cols,
    .code_bit = vnni16_layout::code_bit,
    .pack_codes = vnni16_layout::pack_codes,
    .pack_beside = vnni16_layout::pack_beside,
};

}  // namespace moracle
