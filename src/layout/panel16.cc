#include "layout/panel16.h"

#include <cstring>

#include "layout/pack_scales.h"
#include "layout/panels.h"
#include "layout/sections.h"

namespace moracle {
namespace panel16_layout {
namespace {

using namespace panel16;

constexpr DType kHolds[] = {DType::kF32, DType::kF16,    DType::kBF16,  DType::kI8,
                            DType::kI4,  DType::kF8E4M3, DType::kF4E2M1};

Sections sections(const MatrixShape& shape) {
  const int64_t padded_rows = num_panels(shape) * kRows;
  const int64_t scales = shape.key.quantized() ? padded_rows * num_groups(shape) : 0;
  return lay_out(num_panels(shape) * panel_bytes(shape), scales * sizeof(float),
                 shape.key.symmetric ? 0 : scales,
                 shape.group_index ? shape.k * sizeof(int32_t) : 0,
                 shape.bias ? padded_rows * sizeof(float) : 0);
}

int64_t code_bit(const MatrixShape& shape, int64_t r, int64_t c) {
  const DType dtype = shape.key.dtype;
  return panel16::code_bit(dtype, bits(dtype), shape.k, r, c);
}

// The codes that one row contributes at a time: one column, or two if columns are interleaved.
void pack_codes(const MatrixShape& shape, const CanonicalMatrix& m, int64_t first_row,
                int64_t begin, int64_t end, std::byte* out) {
  out += (first_row + begin) / kRows * panel_bytes(shape);
  const int64_t units = panel16::padded_cols(shape) / interleave(shape.key.dtype);
  const auto same = [](auto unit) { return unit; };
  switch (bits(shape.key.dtype) * interleave(shape.key.dtype)) {
    case 8:
      return pack_panels<uint8_t>(m, begin, end, units, same, out);
    case 16:
      return pack_panels<uint16_t>(m, begin, end, units, same, out);
    default:
      return pack_panels<uint32_t>(m, begin, end, units, same, out);
  }
}

void pack_beside(const MatrixShape& shape, const CanonicalMatrix& m, int64_t first_row,
                 std::byte* out) {
  const Sections s = sections(shape);
  if (first_row == 0) {
    const size_t codes = num_panels(shape) * panel_bytes(shape);
    std::memset(out + codes, 0, s.bytes - codes);
    put(m.group_index, out + s.group_index);
  }
  const int64_t groups = num_groups(shape);
  pack_scales(m, first_row, groups, kRows, false, out + s.scales);
  pack_zero_points(m, first_row, groups, out + s.zero_points);
  put(m.bias, out + s.bias + first_row * sizeof(float));
}

}  // namespace
}  // namespace panel16_layout

const Layout kPanel16Layout = {
    .name = "panel16",
    .summary = "panels of 16 rows, columns interleaved, with their scales",
    .holds = panel16_layout::kHolds,
    .sections = panel16_layout::sections,
    .read_cols = panel16::padded_cols,
    .code_bit = panel16_layout::code_bit,
    .pack_codes = panel16_layout::pack_codes,
    .pack_beside = panel16_layout::pack_beside,
};

}  // namespace moracle
