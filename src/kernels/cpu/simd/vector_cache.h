// Elements of cached keys and values: floats, or 16-bit floats, which are widened exactly on load.
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
using Shorts = uint16_t __attribute__((vector_size(2 * kLanes)));

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

MORACLE_VECTOR_INLINE Vec load(const BF16* p) {
  return widen_bf16(load_as<Shorts>(p));
}
MORACLE_VECTOR_INLINE Vec load(const F16* p) {
  return widen_f16(load_as<Shorts>(p));
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
