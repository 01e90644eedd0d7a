// Elements of cached keys and values: floats, or floats of 16 or 8 bits, which are widened exactly
// on load.
#pragma once

#include "kernels/cpu/simd/vector_convert.h"

namespace moracle::cpu {
namespace {

struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct E4M3 {
  uint8_t bits;
};
using Shorts = uint16_t __attribute__((vector_size(2 * kLanes)));
using Bytes = uint8_t __attribute__((vector_size(kLanes)));

MORACLE_VECTOR_INLINE Bits widen_bits(Shorts v) {
#if defined(MORACLE_VECTOR_AVX512)
  return as<Bits>(_mm512_cvtepu16_epi32(as<__m256i>(v)));
#elif defined(MORACLE_VECTOR_AVX2)
  return as<Bits>(_mm256_cvtepu16_epi32(as<__m128i>(v)));
#else
  return __builtin_convertvector(v, Bits);
#endif
}
MORACLE_VECTOR_INLINE Vec widen_bf16(Shorts v) {
  return as<Vec>(widen_bits(v) << 16);
}
MORACLE_VECTOR_INLINE Vec widen_f16(Shorts v) {
#if defined(MORACLE_VECTOR_AVX512)
  return _mm512_cvtph_ps(as<__m256i>(v));
#elif defined(MORACLE_VECTOR_AVX2)
  return _mm256_cvtph_ps(as<__m128i>(v));
#else
  return float_of_f16(widen_bits(v));
#endif
}

/// As f16, e4m3 has the same fraction and 2^-8 of the value. A NaN needs all bits of f16's
/// exponent.
MORACLE_VECTOR_INLINE Vec widen_e4m3(Bytes v) {
#if defined(MORACLE_VECTOR_AVX512)
  const Shorts code = as<Shorts>(_mm256_cvtepu8_epi16(as<__m128i>(v)));
#elif defined(MORACLE_VECTOR_AVX2)
  const Shorts code = as<Shorts>(_mm_cvtepu8_epi16(_mm_cvtsi64_si128(as<int64_t>(v))));
#else
  const Shorts code = __builtin_convertvector(v, Shorts);
#endif
  const Shorts magnitude = code & 0x7f;
  const Shorts nan = as<Shorts>(magnitude == 0x7f) & 0x7e00;
  return widen_f16((code & 0x80) << 8 | magnitude << 7 | nan) * 256.0f;
}

MORACLE_VECTOR_INLINE Vec load(const BF16* p) {
  return widen_bf16(load_as<Shorts>(p));
}
MORACLE_VECTOR_INLINE Vec load(const F16* p) {
  return widen_f16(load_as<Shorts>(p));
}
MORACLE_VECTOR_INLINE Vec load(const E4M3* p) {
  return widen_e4m3(load_as<Bytes>(p));
}
MORACLE_VECTOR_INLINE Vec load_first(const E4M3* p, int64_t count) {
  Bytes v{};
  __builtin_memcpy(&v, p, static_cast<size_t>(count));
  return widen_e4m3(v);
}
MORACLE_VECTOR_INLINE Shorts first_shorts(const void* p, int64_t count) {
  Shorts v{};
  __builtin_memcpy(&v, p, static_cast<size_t>(count) * sizeof(uint16_t));
  return v;
}
MORACLE_VECTOR_INLINE Vec load_first(const BF16* p, int64_t count) {
  return widen_bf16(first_shorts(p, count));
}
MORACLE_VECTOR_INLINE Vec load_first(const F16* p, int64_t count) {
  return widen_f16(first_shorts(p, count));
}

}  // namespace
}  // namespace moracle::cpu
