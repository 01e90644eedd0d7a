#include "layout/vnni16.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/scalar.h"
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
  return lay_out(panels * panel_bytes(shape), panels * scale_bytes(shape),
                 panels_have_zero_points(shape) ? panels * num_groups(shape) * kRows : 0,
                 panels * minimum_bytes(shape), shape.group_index ? shape.k * sizeof(int32_t) : 0,
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

// The numbers of four codes, each in its byte.
uint32_t numbers_of(CodeSet set, uint32_t codes) {
  const uint32_t mask = 0x01010101u * ((1u << code_bits(set)) - 1);
  if (set == CodeSet::kUnsigned5) return codes & mask;
  if (!has_code_book(set))  // flips the sign, which moves the least code to 0
    return (codes ^ 0x01010101u << (code_bits(set) - 1)) & mask;
  uint32_t numbers = 0;
  for (unsigned i = 0; i < 32; i += 8)
    numbers |= static_cast<uint32_t>(number_of(set, static_cast<int8_t>(codes >> i))) << i;
  return numbers;
}

// One row of a unit, whose row blocks are 16 words apart.
void pack_unit(CodeSet set, Unit unit, const std::byte* codes, int64_t count, std::byte* out) {
  const int high = code_bits(set) - 4;
  uint32_t upper = 0;
  const auto put_word = [&](int64_t block, uint32_t word) {
    std::memcpy(out + block * kRowBlockBytes, &word, sizeof word);
  };
  for (int64_t c = 0, low = 0; c < unit.cols; c += 8, ++low) {
    uint32_t two[2] = {};
    if (c < count)
      std::memcpy(two, codes + c, static_cast<size_t>(std::min<int64_t>(count - c, sizeof two)));
    for (uint32_t& four : two) four = numbers_of(set, four);
    put_word(low, (two[0] & 0x0f0f0f0fu) | (two[1] & 0x0f0f0f0fu) << 4);
    for (int half = 0; half < 2 && high > 0; ++half)
      upper |= (two[half] >> 4 & 0x0f0f0f0fu) << ((c / 4 + half) * high);
  }
  if (high > 0) put_word(unit.blocks - 1, upper);
}

void pack_code_set(const MatrixShape& shape, const CanonicalMatrix& m, int64_t begin, int64_t end,
                   std::byte* out) {
  const Unit unit = unit_of(shape);
  for (int64_t first = begin; first < end; first += kRows, out += panel_bytes(shape)) {
    for (int64_t r = 0; r < kRows; ++r) {
      const bool present = first + r < end;
      for (int64_t c = 0; c < padded_cols(shape); c += unit.cols) {
        const std::byte* const from = m.codes.data() + (present ? (first + r) * m.k + c : 0);
        pack_unit(shape.key.codes, unit, from, present ? m.k - c : 0,
                  out + c / unit.cols * unit.blocks * kRowBlockBytes + r * 4);
      }
    }
  }
}

void pack_codes(const MatrixShape& shape, const CanonicalMatrix& m, int64_t first_row,
                int64_t begin, int64_t end, std::byte* out) {
  out += (first_row + begin) / kRows * panel_bytes(shape);
  if (shape.key.codes != CodeSet::kAny) return pack_code_set(shape, m, begin, end, out);
  const int64_t units = num_blocks(shape);
  if (bits(shape.key.dtype) == 4)
    pack_panels<uint32_t>(m, begin, end, units, halves, out);
  else
    pack_panels<uint32_t>(
        m, begin, end, units, [](uint32_t unit) { return unit; }, out);
}

// Packs values [rows, groups], each of which is a step times its factor.
void pack_steps(const MatrixShape& shape, const std::vector<float>& values,
                const std::vector<float>& factors, int64_t rows, int64_t first_row,
                std::byte* out) {
  if (values.empty()) return;
  const int64_t groups = num_groups(shape), columns = num_factors(shape);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t panel = (first_row + r) / kRows, lane = (first_row + r) % kRows;
    std::byte* const to = out + panel * step_bytes(shape);
    for (int64_t f = 0; f < columns; ++f) {
      const uint16_t half = float_to_f16(factors[r * columns + f] / factor_unit(shape.key.codes));
      std::memcpy(to + (f * kRows + lane) * sizeof half, &half, sizeof half);
    }
    for (int64_t g = 0; g < groups; ++g) {
      const float factor = factors[r * columns + g * group_cols(shape) / kFactorCols];
      const float step = factor == 0 ? 0.0f : values[r * groups + g] / factor;
      to[factor_bytes(shape) + g * kRows + lane] =
          static_cast<std::byte>(static_cast<int8_t>(step));
    }
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
  const int64_t groups = num_groups(shape), lanes = scale_lanes(shape);
  if (scale_is_step(shape)) {
    pack_steps(shape, m.scales, m.scale_factors, m.n, first_row, out + s.scales);
    pack_steps(shape, m.minimums, m.minimum_factors, m.n, first_row, out + s.minimums);
    return put(m.bias, out + s.bias + first_row * sizeof(float));
  }
  if (shape.key.scale_dtype == DType::kF16)
    pack_by_group(m.scales, m, first_row, groups, lanes, float_to_f16, out + s.scales);
  else
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
