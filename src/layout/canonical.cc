// Codes as canonical form has them, then scales, zero points, group index, bias as they are: what
// the reference computes from.
#include <cstring>

#include "layout/sections.h"
#include "quant/codec.h"

namespace moracle {
namespace {

// Only the sizes of a matrix of this shape.
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
                 shape.group_index ? m.k * sizeof(int32_t) : 0,
                 shape.bias ? m.n * sizeof(float) : 0);
}

int64_t code_bit(const MatrixShape& shape, int64_t r, int64_t c) {
  return r * outline(shape).row_bytes() * 8 + c * bits(shape.key.dtype);
}

template <class Range>
void put(std::byte* out, const Range& range, size_t end) {
  const size_t bytes = range.size() * sizeof(*range.data());
  if (bytes > 0) std::memcpy(out, range.data(), bytes);
  std::memset(out + bytes, 0, end - bytes);
}

void pack(const CanonicalMatrix& m, std::byte* out) {
  const MatrixShape shape{m.n, m.k, m.key, !m.group_index.empty(), !m.bias.empty()};
  const Sections s = sections(shape);
  put(out + s.codes, m.codes, s.scales - s.codes);
  put(out + s.scales, m.scales, s.zero_points - s.scales);
  put(out + s.zero_points, m.zero_points, s.group_index - s.zero_points);
  put(out + s.group_index, m.group_index, s.bias - s.group_index);
  put(out + s.bias, m.bias, s.bytes - s.bias);
}

}  // namespace

const Layout kCanonicalLayout = {
    .name = "canonical",
    .summary = "rows of codes, then scales, zero points, group index, bias",
    .holds = kCodecTypes,
    .sections = sections,
    .read_cols = [](const MatrixShape& shape) { return shape.k; },
    .code_bit = code_bit,
    .pack = pack,
};

}  // namespace moracle
