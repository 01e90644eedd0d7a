#include "kernels/cpu/decode/decode_panel.h"

#include <algorithm>
#include <array>

#include "base/scalar.h"

namespace moracle::cpu {
namespace {

constexpr int kRows = static_cast<int>(panel16::kRows);

template <size_t kCodes, class Decode>
std::array<float, kCodes> table(Decode decode) {
  std::array<float, kCodes> values{};
  for (size_t code = 0; code < kCodes; ++code) values[code] = decode(static_cast<uint8_t>(code));
  return values;
}

// Column c of a panel as numbers, before scaling.
void decode_column(DType dtype, const uint8_t* panel, int64_t c, float* out) {
  static const auto kE4M3 = table<256>(e4m3_to_float);
  static const auto kE2M1 = table<16>(e2m1_to_float);
  switch (dtype) {
    case DType::kI4:
      for (int r = 0; r < kRows; ++r) {
        const int nibble = panel[c / 2 * kRows + r] >> (4 * (c % 2)) & 15;
        out[r] = static_cast<float>((nibble ^ 8) - 8);
      }
      break;
    case DType::kF4E2M1:
      for (int r = 0; r < kRows; ++r)
        out[r] = kE2M1[panel[c / 2 * kRows + r] >> (4 * (c % 2)) & 15];
      break;
    case DType::kI8:
      for (int r = 0; r < kRows; ++r)
        out[r] = static_cast<int8_t>(panel[(c / 2 * kRows + r) * 2 + c % 2]);
      break;
    default:
      for (int r = 0; r < kRows; ++r) out[r] = kE4M3[panel[c * kRows + r]];
      break;
  }
}

}  // namespace

void decode_panel(const KernelWeights& weights, int64_t e, int64_t panel, float* out) {
  const MatrixShape& shape = weights.shape;
  const Sections& s = weights.sections;
  const std::byte* base = weights.expert(e);
  const auto* codes =
      reinterpret_cast<const uint8_t*>(base + s.codes) + panel * panel16::panel_bytes(shape);
  const int64_t groups = panel16::num_groups(shape), group_cols = panel16::group_cols(shape);
  const auto* scales = reinterpret_cast<const float*>(base + s.scales) + panel * groups * kRows;
  const auto* zeros =
      reinterpret_cast<const int8_t*>(base + s.zero_points) + panel * groups * kRows;
  const auto* group_index = reinterpret_cast<const int32_t*>(base + s.group_index);
  for (int64_t c = 0; c < shape.k; ++c) {
    const int64_t group = shape.group_index ? group_index[c] : c / group_cols;
    float* const column = out + c * kRows;
    decode_column(shape.key.dtype, codes, c, column);
    const float* scale = scales + group * kRows;
    if (!shape.key.symmetric) {
      for (int r = 0; r < kRows; ++r) column[r] -= zeros[group * kRows + r];
    }
    for (int r = 0; r < kRows; ++r) column[r] *= scale[r];
  }
  std::fill(out + shape.k * kRows, out + panel16::padded_cols(shape) * kRows, 0.0f);
}

}  // namespace moracle::cpu
