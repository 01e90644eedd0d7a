#include "quant/encode_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

// Compiled twice: for any CPU, and for AVX2 with vectors of twice the size. Both versions run the
// same single IEEE operations (no fused multiply-add), so codes do not depend on the CPU. Values
// are finite.
#define MORACLE_INLINE inline __attribute__((always_inline))
#if defined(__x86_64__)
#define MORACLE_AVX2 __attribute__((target("avx2")))
#endif

namespace moracle {
namespace {

// Magnitudes have the same order as their bits, with infinity and NaN on top. Unlike a float
// maximum, an integer maximum vectorizes.
MORACLE_INLINE int32_t largest_bits(const float* values, int64_t rows, int64_t cols,
                                    int64_t stride) {
  int32_t largest = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c)
      largest = std::max(largest, std::bit_cast<int32_t>(values[r * stride + c]) & 0x7fffffff);
  }
  return largest;
}

enum class Encoding { kInt8, kE4M3, kE4M3Inverse };

// Eight values at a time in the compilers' vector types, which every CPU supports in some form. In
// plain loops, compilers turn the cases of e4m3 into branches. The formulas are those of
// quotient_to_int8 and float_to_e4m3.
constexpr int64_t kLanes = 8;
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Ints = int32_t __attribute__((vector_size(4 * kLanes)));
using Codes = uint8_t __attribute__((vector_size(kLanes)));

template <Encoding encoding>
MORACLE_INLINE void encode_block(const float* from, float scale, uint8_t* to) {
  Floats quotient;
  std::memcpy(&quotient, from, sizeof quotient);
  quotient = encoding == Encoding::kE4M3Inverse ? quotient * scale : quotient / scale;
  Ints code;
  if constexpr (encoding == Encoding::kInt8) {
    quotient = quotient < -128.0f ? Floats{} - 128.0f : quotient;
    quotient = quotient > 127.0f ? Floats{} + 127.0f : quotient;
    code = reinterpret_cast<Ints>(quotient + 12582912.0f);
  } else {
    const Ints bits = reinterpret_cast<Ints>(quotient), magnitude = bits & 0x7fffffff;
    const Ints small =
        reinterpret_cast<Ints>(reinterpret_cast<Floats>(magnitude) + 0x1p14f) - 0x46800000;
    const Ints large = (magnitude - 0x3c000000 + 0x7ffff + ((magnitude >> 20) & 1)) >> 20;
    code = magnitude < 0x3c800000 ? small : large;
    code = magnitude >= 0x43e00000 ? Ints{} + 0x7e : code;
    code |= (bits >> 24) & 0x80;
  }
  const Codes codes = __builtin_convertvector(code, Codes);
  std::memcpy(to, &codes, sizeof codes);
}

template <Encoding encoding>
MORACLE_INLINE void encode_each(float scale, const float* from, int64_t count, uint8_t* to) {
  int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) encode_block<encoding>(from + c, scale, to + c);
  if (c == count) return;
  float rest[kLanes] = {};
  uint8_t codes[kLanes];
  std::copy(from + c, from + count, rest);
  encode_block<encoding>(rest, scale, codes);
  std::copy(codes, codes + (count - c), to + c);
}

MORACLE_INLINE void encode_by(Encoding encoding, float scale, const float* from, int64_t count,
                              uint8_t* to) {
  switch (encoding) {
    case Encoding::kInt8:
      return encode_each<Encoding::kInt8>(scale, from, count, to);
    case Encoding::kE4M3:
      return encode_each<Encoding::kE4M3>(scale, from, count, to);
    case Encoding::kE4M3Inverse:
      return encode_each<Encoding::kE4M3Inverse>(scale, from, count, to);
  }
}

int32_t largest_anywhere(const float* values, int64_t rows, int64_t cols, int64_t stride) {
  return largest_bits(values, rows, cols, stride);
}
void encode_anywhere(Encoding encoding, float scale, const float* from, int64_t count,
                     uint8_t* to) {
  encode_by(encoding, scale, from, count, to);
}
#if defined(MORACLE_AVX2)
MORACLE_AVX2 int32_t largest_avx2(const float* values, int64_t rows, int64_t cols, int64_t stride) {
  return largest_bits(values, rows, cols, stride);
}
MORACLE_AVX2 void encode_avx2(Encoding encoding, float scale, const float* from, int64_t count,
                              uint8_t* to) {
  encode_by(encoding, scale, from, count, to);
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
  if (key.dtype == DType::kI8) return kEncode(Encoding::kInt8, scale.scale, from, count, to);
  if (scale.inverse > 0) return kEncode(Encoding::kE4M3Inverse, scale.inverse, from, count, to);
  kEncode(Encoding::kE4M3, scale.scale, from, count, to);
}

}  // namespace moracle
