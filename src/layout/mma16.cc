#include "layout/mma16.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "layout/pack_scales.h"
#include "layout/sections.h"
#include "quant/e4m3_scales.h"

namespace moracle {
namespace mma16_layout {
namespace {

using namespace mma16;

constexpr DType kHolds[] = {DType::kF16, DType::kBF16,   DType::kI8,
                            DType::kI4,  DType::kF8E4M3, DType::kF4E2M1};

int code_bits(const MatrixShape& shape) {
  return static_cast<int>(bits(shape.key.dtype));
}
int64_t panel_bytes(const MatrixShape& shape) {
  return num_blocks(shape.k) * block_bytes(code_bits(shape));
}

Sections sections(const MatrixShape& shape) {
  const int64_t panels = num_panels(shape.n);
  const int64_t scales = shape.key.quantized() ? panels * num_groups(shape) * kRows : 0;
  return lay_out(panels * panel_bytes(shape), scales * scale_bytes(shape),
                 panels_have_zero_points(shape) ? scales : 0,
                 shape.key.minimums ? scales * sizeof(float) : 0,
                 shape.group_index ? shape.k * sizeof(int32_t) : 0,
                 shape.bias ? panels * kRows * sizeof(float) : 0,
                 has_row_factors(shape) ? panels * kRows * sizeof(float) : 0);
}

// Reorders eight 4-bit columns to the order of nibble().
uint32_t interleaved(uint32_t columns) {
  uint32_t to = 0;
  for (int j = 0; j < 8; ++j) to |= (columns >> (4 * j) & 15u) << (4 * nibble(j));
  return to;
}

// The index in the packed block of word w of row r.
int word_of(int width, int r, int w) {
  if (width == 4) return block_bit(4, r, 8 * w) / 32;
  if (width == 8) return block_bit(8, r, 4 * w) / 32;
  return block_bit(16, r, 2 * w) / 32;
}

void pack_codes(const MatrixShape& shape, const CanonicalMatrix& m, int64_t first_row,
                int64_t begin, int64_t end, std::byte* out) {
  const int width = code_bits(shape), words = kCols * width / 32;
  const int64_t row_bytes = m.row_bytes(), slice = kCols * width / 8;
  const bool half_byte = shape.k * width % 8 != 0;
  int place[kRows][kCols / 2];
  for (int r = 0; r < kRows; ++r) {
    for (int w = 0; w < words; ++w) place[r][w] = word_of(width, r, w);
  }
  out += (first_row + begin) / kRows * panel_bytes(shape);
  for (int64_t first = begin; first < end; first += kRows) {
    for (int64_t at = 0; at < num_blocks(shape.k) * slice; at += slice) {
      const int64_t bytes = std::min(slice, row_bytes - at);
      for (int r = 0; r < kRows; ++r) {
        uint32_t line[kCols / 2] = {};
        if (first + r < end) {
          std::memcpy(line, m.codes.data() + (first + r) * row_bytes + at, bytes);
          if (half_byte && at + bytes == row_bytes)
            line[(bytes - 1) / 4] &= 0xffffffffu >> (8 * (3 - (bytes - 1) % 4) + 4);
        }
        for (int w = 0; w < words; ++w) {
          const uint32_t word = width == 4 ? interleaved(line[w]) : line[w];
          std::memcpy(out + place[r][w] * 4, &word, 4);
        }
      }
      out += block_bytes(width);
    }
  }
}

// Packs scales as e4m3 numbers, with the factors of their rows.
void pack_e4m3_scales(const CanonicalMatrix& m, int64_t first_row, int64_t groups,
                      std::byte* scales, std::byte* factors) {
  for (int64_t r = 0; r < m.n; ++r) {
    const float* const row = m.scales.data() + r * groups;
    const float factor = row_factor(groups, [&](int64_t g) { return row[g]; }).factor;
    const int64_t panel = (first_row + r) / kRows, lane = (first_row + r) % kRows;
    std::memcpy(factors + (first_row + r) * sizeof factor, &factor, sizeof factor);
    for (int64_t g = 0; g < groups; ++g)
      scales[(panel * groups + g) * kRows + lane] = std::byte{e4m3_scale(row[g], factor)};
  }
}

void pack_beside(const MatrixShape& shape, const CanonicalMatrix& m, int64_t first_row,
                 std::byte* out) {
  const Sections s = sections(shape);
  if (first_row == 0) {
    const size_t codes = num_panels(shape.n) * panel_bytes(shape);
    std::memset(out + codes, 0, s.bytes - codes);
    put(m.group_index, out + s.group_index);
  }
  const int64_t groups = num_groups(shape);
  if (has_row_factors(shape))
    pack_e4m3_scales(m, first_row, groups, out + s.scales, out + s.row_factors);
  else
    pack_scales(m, first_row, groups, kRows, scale_is_exponent(shape), out + s.scales);
  if (shape.key.minimums)
    pack_minimums(m, first_row, groups, out + s.minimums);
  else
    pack_zero_points(m, first_row, groups, out + s.zero_points);
  put(m.bias, out + s.bias + first_row * sizeof(float));
}

}  // namespace
}  // namespace mma16_layout

const Layout kMma16Layout = {
    .name = "mma16",
    .summary = "blocks of 16 rows and 32 columns; each lane loads its tensor-core fragment at once",
    .holds = mma16_layout::kHolds,
    .sorts_columns = true,
    .holds_minimums = true,
    .sections = mma16_layout::sections,
    // Kernels load at least 16 bytes of activations at a time, for every dtype.
    .read_cols = [](const MatrixShape& shape) { return (shape.k + 15) / 16 * 16; },
    .code_bit =
        [](const MatrixShape& shape, int64_t r, int64_t c) {
          return mma16::code_bit(mma16_layout::code_bits(shape), shape.k, r, c);
        },
    .pack_codes = mma16_layout::pack_codes,
    .pack_beside = mma16_layout::pack_beside,
};

}  // namespace moracle
