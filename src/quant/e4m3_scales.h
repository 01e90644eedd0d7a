// Scales of a row as e4m3 numbers times a factor of the row: those of NVFP4. For host and device
// code.
//
// A producer stores scales as e4m3, of four significant bits, and one f32 number for all of them.
// The f32 scales of the canonical form are their products, rounded once. Let the factor be the
// row's largest scale divided by one of the eight largest e4m3 numbers of as many mantissas. With
// the right one of them each scale divided by the factor is an e4m3 number again, but for
// roundings: at most as many binades lie below the largest as in the file.
#pragma once

#include <bit>

#include "base/scalar.h"
#include "moracle/quant.h"

namespace moracle {

class ThreadPool;

/// Scales of a row count as 0 if all of them are below this.
inline constexpr float kLeastScale = 0x1p-100f;

struct RowFactor {
  float factor = 0;
  bool exact = true;  ///< each scale is an e4m3 number times the factor
};

/// The e4m3 number nearest to scale / factor. NaN and infinity become NaN.
constexpr uint8_t e4m3_scale(float scale, float factor) {
  if (!(scale - scale == 0)) return 0x7f;
  return factor > 0 ? float_to_e4m3(scale / factor) : 0;
}

inline constexpr float kScaleRounding = 0x1p-20f;

/// True if a scale is an e4m3 number times the factor, but for a relative error of `rounding`, or
/// is not finite. Without branches, so that loops over it vectorize.
constexpr bool is_e4m3_times(float factor, float scale, float rounding = kScaleRounding) {
  const float x = scale < 0 ? -scale : scale, quotient = x / factor;
  // The nearest number of four bits, and below 2^-6 the nearest multiple of 2^-9.
  const float four =
      std::bit_cast<float>((std::bit_cast<uint32_t>(quotient) + 0x7ffffu) & 0xfff00000u);
  const float small = (quotient + 0x1p14f) - 0x1p14f;
  const float near = (quotient < 0x1p-6f ? small : four) * factor;
  const float off = near < x ? x - near : near - x;
  return off <= x * rounding + 0x1p-149f || !(scale - scale == 0);
}

/// Finds the factor of `groups` scales: scale_of(g). Scales that are not finite do not count.
template <class ScaleOf>
constexpr RowFactor row_factor(int64_t groups, ScaleOf scale_of) {
  constexpr int64_t kTogether = 16;
  float largest = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const float scale = scale_of(g), size = scale < 0 ? -scale : scale;
    largest = scale - scale == 0 && size > largest ? size : largest;
  }
  if (largest < kLeastScale) return {};
  for (int mantissa = 14; mantissa >= 7; --mantissa) {
    // 448 to 256, and 240, whose double e4m3 does not have.
    const int number = mantissa == 7 ? 15 * 16 : mantissa * 32;
    const float factor = largest / static_cast<float>(number);
    bool exact = true;
    for (int64_t first = 0; exact && first < groups; first += kTogether) {
      const int64_t end = first + kTogether < groups ? first + kTogether : groups;
      for (int64_t g = first; g < end; ++g) exact &= is_e4m3_times(factor, scale_of(g));
    }
    if (exact) return {factor, true};
  }
  return {largest / 448, false};
}

/// Error (kInvalidArgument): NVFP4 with a row whose scales are no e4m3 numbers times a factor, by
/// its number plus `first_row`. Other weights pass.
Status check_e4m3_scales(const CanonicalMatrix& matrix, int64_t first_row, ThreadPool& pool);

}  // namespace moracle
