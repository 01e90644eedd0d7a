#include "quant/encode_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/scalar.h"
#include "quant/activation.h"

// Plain loops, compiled twice: for any CPU, and for AVX2, which has vectors of twice the size. Both
// do the same IEEE operations one by one (no fused multiply-add), so that codes do not depend on
// the CPU.
#define MORACLE_INLINE inline __attribute__((always_inline))
#if defined(__x86_64__)
#define MORACLE_AVX2 __attribute__((target("avx2")))
#endif

namespace moracle {
namespace {

// Magnitudes are ordered as their bits are, infinity and NaN above all: unlike a maximum of floats,
// one of integers becomes vector instructions.
MORACLE_INLINE int32_t largest_bits(const float* values, int64_t rows, int64_t cols,
                                    int64_t stride) {
  int32_t largest = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c)
      largest = std::max(largest, std::bit_cast<int32_t>(values[r * stride + c]) & 0x7fffffff);
  }
  return largest;
}

enum class Way { kInt8, kE4M3, kE4M3Inverse };

template <Way way>
MORACLE_INLINE void encode_each(float scale, const float* from, int64_t count, uint8_t* to) {
  for (int64_t c = 0; c < count; ++c) {
    const float quotient = way == Way::kE4M3Inverse ? from[c] * scale : from[c] / scale;
    to[c] = way == Way::kInt8 ? quotient_to_int8(quotient) : float_to_e4m3(quotient);
  }
}

MORACLE_INLINE void encode_by(Way way, float scale, const float* from, int64_t count, uint8_t* to) {
  switch (way) {
    case Way::kInt8:
      return encode_each<Way::kInt8>(scale, from, count, to);
    case Way::kE4M3:
      return encode_each<Way::kE4M3>(scale, from, count, to);
    case Way::kE4M3Inverse:
      return encode_each<Way::kE4M3Inverse>(scale, from, count, to);
  }
}

int32_t largest_anywhere(const float* values, int64_t rows, int64_t cols, int64_t stride) {
  return largest_bits(values, rows, cols, stride);
}
void encode_anywhere(Way way, float scale, const float* from, int64_t count, uint8_t* to) {
  encode_by(way, scale, from, count, to);
}
#if defined(MORACLE_AVX2)
MORACLE_AVX2 int32_t largest_avx2(const float* values, int64_t rows, int64_t cols, int64_t stride) {
  return largest_bits(values, rows, cols, stride);
}
MORACLE_AVX2 void encode_avx2(Way way, float scale, const float* from, int64_t count, uint8_t* to) {
  encode_by(way, scale, from, count, to);
}
const bool kAvx2 = __builtin_cpu_supports("avx2") != 0;
const auto kLargest = kAvx2 ? largest_avx2 : largest_anywhere;
const auto kEncode = kAvx2 ? encode_avx2 : encode_anywhere;
#else
constexpr auto kLargest = largest_anywhere;
constexpr auto kEncode = encode_anywhere;
#endif

}  // namespace

float largest_of(const float* values, int64_t rows, int64_t cols, int64_t stride) {
  const int32_t bits = kLargest(values, rows, cols, stride);
  return bits >= 0x7f800000 ? NAN : std::bit_cast<float>(bits);
}

void encode_all(const QuantKey& key, const WeightScale& scale, const float* from, int64_t count,
                uint8_t* to) {
  if (key.dtype == DType::kI8) return kEncode(Way::kInt8, scale.scale, from, count, to);
  if (scale.inverse > 0) return kEncode(Way::kE4M3Inverse, scale.inverse, from, count, to);
  kEncode(Way::kE4M3, scale.scale, from, count, to);
}

}  // namespace moracle
