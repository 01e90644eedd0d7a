// 16-bit floats, with the bits of base/scalar.h. The CPU's own f16 conversions treat NaNs
// differently.
#pragma once

#include "kernels/cpu/simd/vector_quantize.h"

namespace moracle::cpu {
namespace {

void to_bf16(const float* x, int64_t count, uint16_t* out) {
  each_block(x, count, out, [](FloatBlock b) {
    Block to;
    MORACLE_VECTOR_UNROLL
    for (int i = 0; i < kVecs; ++i) {
      const Bits u = as<Bits>(b.v[i]);
      const Bits rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
      const Ints nan = as<Ints>(u & 0x7fffffffu) > static_cast<int32_t>(kInfinity);
      to.v[i] = select(nan, (u >> 16) | 0x40u, rounded);
    }
    return to;
  });
}
void from_bf16(const uint16_t* x, int64_t count, float* out) {
  each_block(x, count, out, [](Block b) {
    FloatBlock to;
    MORACLE_VECTOR_UNROLL
    for (int i = 0; i < kVecs; ++i) to.v[i] = as<Vec>(b.v[i] << 16);
    return to;
  });
}

void to_f16(const float* x, int64_t count, uint16_t* out) {
  each_block(x, count, out, [](FloatBlock b) {
    Block to;
    MORACLE_VECTOR_UNROLL
    for (int i = 0; i < kVecs; ++i) {
      const Bits u = as<Bits>(b.v[i]);
      const Bits magnitude = u & 0x7fffffffu;
      const Ints m = as<Ints>(magnitude);
      // Below 2^-14: adding 0.5 leaves the subnormal's ten bits, rounded to even, in the low bits.
      const Bits small = as<Bits>(as<Vec>(magnitude) + 0.5f) - 0x3f000000u;
      const Bits normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
      Bits half = select(m < 0x38800000, small, normal);
      half = select(m >= 0x477ff000, splat_bits(0x7c00u), half);  // rounds to 65536
      half = select(m > static_cast<int32_t>(kInfinity), splat_bits(0x7e00u), half);
      to.v[i] = half | ((u >> 16) & 0x8000u);
    }
    return to;
  });
}
MORACLE_VECTOR_INLINE Vec float_of_f16(Bits half) {
  const Bits magnitude = half & 0x7fffu;
  const Ints m = as<Ints>(magnitude);
  const Vec small = to_float(m) * 0x1p-24f;
  // The exponent is rebased from 15 to 127. The exponent of infinity and NaN is rebased to 255.
  const Bits base = select(m > 0x7bff, splat_bits(224u << 23), splat_bits(112u << 23));
  const Bits bits = select(m < 0x400, as<Bits>(small), (magnitude << 13) + base);
  return as<Vec>(bits | ((half & 0x8000u) << 16));
}
void from_f16(const uint16_t* x, int64_t count, float* out) {
  each_block(x, count, out, [](Block b) {
    FloatBlock to;
    MORACLE_VECTOR_UNROLL
    for (int i = 0; i < kVecs; ++i) to.v[i] = float_of_f16(b.v[i]);
    return to;
  });
}

}  // namespace
}  // namespace moracle::cpu
