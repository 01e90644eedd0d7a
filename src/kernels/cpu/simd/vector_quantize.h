// Quantizes and dequantizes rows, with the bits of quant/activation.h and base/scalar.h.
#pragma once

#include "kernels/cpu/simd/vector_blocks.h"

namespace moracle::cpu {
namespace {

constexpr uint32_t kInfinity = 0x7f800000u;

/// The largest magnitude as bits, which have the order of the magnitudes. kInfinity or more if any
/// value is not finite.
MORACLE_VECTOR_INLINE uint32_t largest_bits(const float* x, int64_t count) {
  Ints most[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < 4; ++v)
      most[v] = larger(most[v], as<Ints>(as<Bits>(load(x + i + v * kLanes)) & 0x7fffffffu));
  }
  for (; i + kLanes <= count; i += kLanes)
    most[0] = larger(most[0], as<Ints>(as<Bits>(load(x + i)) & 0x7fffffffu));
  if (i < count)
    most[1] = larger(most[1], as<Ints>(as<Bits>(load_first(x + i, count - i)) & 0x7fffffffu));
  const Ints all = larger(larger(most[0], most[1]), larger(most[2], most[3]));
#if defined(MORACLE_VECTOR_AVX512)
  return static_cast<uint32_t>(_mm512_reduce_max_epi32(as<__m512i>(all)));
#else
  int32_t largest = 0;
  for (int lane = 0; lane < kLanes; ++lane) largest = all[lane] > largest ? all[lane] : largest;
  return static_cast<uint32_t>(largest);
#endif
}

MORACLE_VECTOR_INLINE float from_bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
/// max(largest, 1e-10) / top
MORACLE_VECTOR_INLINE float float_scale(float largest, float top) {
  return (largest < 1e-10f ? 1e-10f : largest) / top;
}
/// 2^ceil(log2(largest / 448)), computed from the bits: exact, unlike a logarithm.
MORACLE_VECTOR_INLINE float power_scale(float largest) {
  const float ratio = largest / 448.0f;
  uint32_t bits;
  __builtin_memcpy(&bits, &ratio, sizeof bits);
  const uint32_t up = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1 : 0);
  const uint32_t exponent = up < 254 ? up : 254;
  return exponent == 0 ? 0x1p-127f : from_bits(exponent << 23);
}

template <class Code>
MORACLE_VECTOR_INLINE void zero_codes(Code* codes, int64_t count) {
  for (int64_t i = 0; i < count; ++i) codes[i] = 0;
}

float quantize_int8(const float* x, int64_t count, int8_t* codes) {
  const uint32_t largest = largest_bits(x, count);
  if (largest >= kInfinity) {
    zero_codes(codes, count);
    return from_bits(0x7fc00000u);
  }
  const float scale = float_scale(from_bits(largest), 127.0f);
  each_block(x, count, reinterpret_cast<uint8_t*>(codes), [scale](FloatBlock b) {
    Block out;
    MORACLE_VECTOR_UNROLL
    for (int i = 0; i < kVecs; ++i) {
      // No value exceeds 127 by more than a rounding. Adding 1.5 · 2^23 leaves the integer, ties to
      // even, in the low bits.
      out.v[i] = as<Bits>(b.v[i] / scale + 12582912.0f);
    }
    return out;
  });
  return scale;
}

/// float_to_e4m3
MORACLE_VECTOR_INLINE Bits to_e4m3(Vec value) {
  const Bits u = as<Bits>(value);
  const Bits magnitude = u & 0x7fffffffu;
  const Ints m = as<Ints>(magnitude);
  // Below 2^-6: adding 2^14 leaves multiples of 2^-9, rounded to even, in the low bits.
  const Bits small = as<Bits>(as<Vec>(magnitude) + 0x1p14f) - 0x46800000u;
  const Bits normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - 0x3c000000u) >> 20;
  Bits code = select(m < 0x3c800000, small, normal);
  code = select(m >= 0x43e00000, splat_bits(0x7eu), code);  // 448 and more
  code = select(m > static_cast<int32_t>(kInfinity), splat_bits(0x7fu), code);
  return code | ((u >> 24) & 0x80u);
}

MORACLE_VECTOR_INLINE void encode_e4m3_inline(const float* x, int64_t count, float scale,
                                              uint8_t* codes) {
  each_block(x, count, codes, [scale](FloatBlock b) {
    Block out;
    MORACLE_VECTOR_UNROLL
    for (int i = 0; i < kVecs; ++i) out.v[i] = to_e4m3(b.v[i] / scale);
    return out;
  });
}
void encode_e4m3(const float* x, int64_t count, float scale, uint8_t* codes) {
  encode_e4m3_inline(x, count, scale, codes);
}

void quantize_e4m3(const float* x, int64_t count, int64_t group, bool e8m0, uint8_t* codes,
                   float* scales) {
  for (int64_t begin = 0; begin < count; begin += group) {
    const int64_t size = count - begin < group ? count - begin : group;
    const uint32_t largest = largest_bits(x + begin, size);
    if (largest >= kInfinity) {
      zero_codes(codes + begin, size);
      *scales++ = from_bits(0x7fc00000u);
      continue;
    }
    const float top = from_bits(largest);
    const float scale = e8m0 ? power_scale(top) : float_scale(top, 448.0f);
    *scales++ = scale;
    encode_e4m3_inline(x + begin, size, scale, codes + begin);
  }
}

void dequantize_e4m3(const uint8_t* codes, int64_t count, float scale, float* out) {
  each_block(codes, count, out, [scale](Block b) {
    FloatBlock to;
    MORACLE_VECTOR_UNROLL
    for (int i = 0; i < kVecs; ++i) {
      const Bits magnitude = b.v[i] & 0x7fu;
      const Ints m = as<Ints>(magnitude);
      // Subnormal codes are small integers, so no operand is ever a float subnormal.
      const Vec small = to_float(m) * 0x1p-9f;
      Bits bits = select(m < 8, as<Bits>(small), (magnitude << 20) + (120u << 23));
      bits = select(m == 0x7f, splat_bits(0x7fc00000u), bits);
      to.v[i] = as<Vec>(bits | ((b.v[i] & 0x80u) << 24)) * scale;
    }
    return to;
  });
}
void dequantize_int8(const int8_t* codes, int64_t count, float scale, float* out) {
  each_block(reinterpret_cast<const uint8_t*>(codes), count, out, [scale](Block b) {
    FloatBlock to;
    MORACLE_VECTOR_UNROLL
    for (int i = 0; i < kVecs; ++i) to.v[i] = to_float(as<Ints>(b.v[i] << 24) >> 24) * scale;
    return to;
  });
}

}  // namespace
}  // namespace moracle::cpu
