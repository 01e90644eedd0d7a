// Columns of codes, one after another: the order of vLLM's FP8 on Intel GPUs. The lanes of a
// subgroup read neighbouring rows of one column.
//
//   code         row r, column c at element c·N + r      N: rows padded to 16
//   scales       g·N + r, or g·blocks + r/block if rows share them      f32
//   zero points  likewise      i8
//
// Columns are padded to 32. Padding has code 0 and scale 0.
#include <algorithm>
#include <cstring>

#include "layout/columns16.h"
#include "layout/sections.h"

namespace moracle {
namespace columns16_layout {
namespace {

using namespace columns16;

constexpr DType kHolds[] = {DType::kBF16, DType::kF16, DType::kI8, DType::kF8E4M3};

// Bytes of all codes.
int64_t codes_bytes(const MatrixShape& shape) {
  return padded_cols(shape) * padded_rows(shape) * bits(shape.key.dtype) / 8;
}

Sections sections(const MatrixShape& shape) {
  const int64_t rows = padded_rows(shape);
  const int64_t scales = shape.key.quantized() ? num_groups(shape) * scale_rows(shape) : 0;
  return lay_out(codes_bytes(shape), scales * sizeof(float), shape.key.symmetric ? 0 : scales, 0,
                 shape.group_index ? shape.k * sizeof(int32_t) : 0,
                 shape.bias ? rows * sizeof(float) : 0);
}

// Goes through 64 columns at a time, so that each cache line is read and written once.
template <class Code>
void transpose(const MatrixShape& shape, const CanonicalMatrix& m, int64_t first_row, int64_t begin,
               int64_t end, std::byte* out) {
  constexpr int64_t kStrip = 64, kSize = sizeof(Code);
  const int64_t rows = padded_rows(shape), row_bytes = m.row_bytes();
  for (int64_t from = 0; from < padded_cols(shape); from += kStrip) {
    const int64_t to = std::min(from + kStrip, padded_cols(shape));
    for (int64_t first = begin; first < end; first += kRowStep) {
      for (int64_t c = from; c < to; ++c) {
        Code line[kRowStep] = {};
        const std::byte* const codes = m.codes.data() + first * row_bytes + c * kSize;
        for (int64_t r = 0; c < shape.k && r < std::min(kRowStep, end - first); ++r)
          std::memcpy(line + r, codes + r * row_bytes, kSize);
        std::memcpy(out + (c * rows + first_row + first) * kSize, line, sizeof line);
      }
    }
  }
}

void pack_codes(const MatrixShape& shape, const CanonicalMatrix& m, int64_t first_row,
                int64_t begin, int64_t end, std::byte* out) {
  if (bits(shape.key.dtype) == 8)
    transpose<uint8_t>(shape, m, first_row, begin, end, out);
  else
    transpose<uint16_t>(shape, m, first_row, begin, end, out);
}

// Transposes values [n or blocks of n, groups] of a slice to [groups, n or blocks of n].
template <class Value>
void put_columns(const std::vector<Value>& values, const MatrixShape& shape, int64_t first_row,
                 std::byte* out) {
  if (values.empty()) return;
  const int64_t groups = num_groups(shape), rows = scale_rows(shape),
                first = first_row / block_rows(shape);
  const auto count = static_cast<int64_t>(values.size()) / groups;
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      std::memcpy(out + (g * rows + first + r) * static_cast<int64_t>(sizeof(Value)),
                  values.data() + r * groups + g, sizeof(Value));
    }
  }
}

void pack_beside(const MatrixShape& shape, const CanonicalMatrix& m, int64_t first_row,
                 std::byte* out) {
  const Sections s = sections(shape);
  if (first_row == 0) {
    const size_t codes = codes_bytes(shape);
    std::memset(out + codes, 0, s.bytes - codes);
    put(m.group_index, out + s.group_index);
  }
  put_columns(m.scales, shape, first_row, out + s.scales);
  put_columns(m.zero_points, shape, first_row, out + s.zero_points);
  put(m.bias, out + s.bias + first_row * sizeof(float));
}

}  // namespace
}  // namespace columns16_layout

const Layout kColumns16Layout = {
    .name = "columns16",
    .summary = "columns of codes, one after another; the lanes of a subgroup read neighbours",
    .holds = columns16_layout::kHolds,
    .sorts_columns = true,
    .sections = columns16_layout::sections,
    .read_cols = [](const MatrixShape& shape) { return shape.k; },
    .code_bit =
        [](const MatrixShape& shape, int64_t r, int64_t c) {
          return (c * columns16::padded_rows(shape) + r) * bits(shape.key.dtype);
        },
    .pack_codes = columns16_layout::pack_codes,
    .pack_beside = columns16_layout::pack_beside,
};

}  // namespace moracle
