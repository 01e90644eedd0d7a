// The layout of the reference: canonical codes, then scales, zero points, minimums, group index and
// bias, all unchanged.
#include <cstring>

#include "layout/sections.h"
#include "quant/codec.h"

namespace moracle {
namespace canonical_layout {
namespace {

// A matrix with the sizes of this shape, but without data.
CanonicalMatrix outline(const MatrixShape& shape) {
  CanonicalMatrix matrix;
  matrix.n = shape.n;
  matrix.k = shape.k;
  matrix.key = shape.key;
  return matrix;
}

Sections sections(const MatrixShape& shape) {
  const CanonicalMatrix m = outline(shape);
  const size_t scales = shape.key.quantized() ? m.scale_rows() * m.scale_cols() : 0;
  return lay_out(m.n * m.row_bytes(), scales * sizeof(float), shape.key.symmetric ? 0 : scales,
                 shape.key.minimums ? scales * sizeof(float) : 0,
                 shape.group_index ? m.k * sizeof(int32_t) : 0,
                 shape.bias ? m.n * sizeof(float) : 0);
}

int64_t code_bit(const MatrixShape& shape, int64_t r, int64_t c) {
  return r * outline(shape).row_bytes() * 8 + c * bits(shape.key.dtype);
}

void pack_codes(const MatrixShape& shape, const CanonicalMatrix& m, int64_t first_row,
                int64_t begin, int64_t end, std::byte* out) {
  const int64_t row_bytes = outline(shape).row_bytes();
  if (begin < end)
    std::memcpy(out + (first_row + begin) * row_bytes, m.codes.data() + begin * row_bytes,
                (end - begin) * row_bytes);
}

void pack_beside(const MatrixShape& shape, const CanonicalMatrix& m, int64_t first_row,
                 std::byte* out) {
  const Sections s = sections(shape);
  const CanonicalMatrix whole = outline(shape);
  if (first_row == 0) {
    const size_t codes = whole.n * whole.row_bytes();
    std::memset(out + codes, 0, s.bytes - codes);
    put(m.group_index, out + s.group_index);
  }
  const int64_t block = shape.key.group.rows == GroupShape::kAll ? shape.n : shape.key.group.rows;
  const int64_t scale = block == 0 ? 0 : first_row / block * whole.scale_cols();
  put(m.scales, out + s.scales + scale * sizeof(float));
  put(m.zero_points, out + s.zero_points + scale);
  put(m.minimums, out + s.minimums + scale * sizeof(float));
  put(m.bias, out + s.bias + first_row * sizeof(float));
}

}  // namespace
}  // namespace canonical_layout

const Layout kCanonicalLayout = {
    .name = "canonical",
    .summary = "rows of codes, then scales, zero points, minimums, group index, bias",
    .holds = kCodecTypes,
    .holds_minimums = true,
    .sections = canonical_layout::sections,
    .read_cols = [](const MatrixShape& shape) { return shape.k; },
    .code_bit = canonical_layout::code_bit,
    .pack_codes = canonical_layout::pack_codes,
    .pack_beside = canonical_layout::pack_beside,
};

}  // namespace moracle
