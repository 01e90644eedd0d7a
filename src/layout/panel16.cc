#include "layout/panel16.h"

#include <cstring>

#include "layout/by_group.h"
#include "layout/sections.h"

namespace moracle {
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
  const int64_t i = interleave(shape.key.dtype);
  const int64_t element = (c / i) * kRows * i + (r % kRows) * i + c % i;
  return (r / kRows) * panel_bytes(shape) * 8 + element * bits(shape.key.dtype);
}

// Two columns of one row, one byte: as canonical form already has them.
void pack_nibbles(const CanonicalMatrix& m, const MatrixShape& shape, std::byte* out) {
  const int64_t row_bytes = m.row_bytes();
  for (int64_t r = 0; r < m.n; ++r) {
    std::byte* panel = out + (r / kRows) * panel_bytes(shape) + r % kRows;
    const std::byte* row = m.codes.data() + r * row_bytes;
    for (int64_t pair = 0; pair < m.k / 2; ++pair) panel[pair * kRows] = row[pair];
    if (m.k % 2 != 0) panel[m.k / 2 * kRows] = row[m.k / 2] & std::byte{15};
  }
}

template <class Element>
void pack_elements(const CanonicalMatrix& m, const MatrixShape& shape, std::byte* out) {
  const int64_t i = interleave(m.key.dtype);
  for (int64_t r = 0; r < m.n; ++r) {
    std::byte* panel = out + (r / kRows) * panel_bytes(shape);
    const std::byte* row = m.codes.data() + r * m.row_bytes();
    for (int64_t c = 0; c < m.k; ++c) {
      const int64_t element = (c / i) * kRows * i + (r % kRows) * i + c % i;
      std::memcpy(panel + element * sizeof(Element), row + c * sizeof(Element), sizeof(Element));
    }
  }
}

void pack(const CanonicalMatrix& m, std::byte* out) {
  const MatrixShape shape{m.n, m.k, m.key, !m.group_index.empty(), !m.bias.empty()};
  const Sections s = sections(shape);
  std::memset(out, 0, s.bytes);
  switch (bits(m.key.dtype)) {
    case 4:
      pack_nibbles(m, shape, out + s.codes);
      break;
    case 8:
      pack_elements<uint8_t>(m, shape, out + s.codes);
      break;
    case 16:
      pack_elements<uint16_t>(m, shape, out + s.codes);
      break;
    default:
      pack_elements<uint32_t>(m, shape, out + s.codes);
      break;
  }
  auto same = [](auto value) { return value; };
  pack_by_group(m.scales, m, num_groups(shape), kRows, kRows, same, out + s.scales);
  pack_by_group(m.zero_points, m, num_groups(shape), kRows, kRows, same, out + s.zero_points);
  auto put = [&](const auto& values, size_t at) {
    if (!values.empty()) std::memcpy(out + at, values.data(), values.size() * sizeof(values[0]));
  };
  put(m.group_index, s.group_index);
  put(m.bias, s.bias);
}

}  // namespace

const Layout kPanel16Layout = {
    .name = "panel16",
    .summary = "panels of 16 rows, columns interleaved, scales beside them",
    .holds = kHolds,
    .sections = sections,
    .read_cols = padded_cols,
    .code_bit = code_bit,
    .pack = pack,
};

}  // namespace moracle
