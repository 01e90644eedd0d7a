// Blocks of 16 elements, one or more vectors, for codes that are narrower than floats.
#pragma once

#include "kernels/cpu/simd/vector.h"

namespace moracle::cpu {
namespace {

constexpr int kBlock = 16;
constexpr int kVecs = kBlock / kLanes;
struct Block {
  Bits v[kVecs];
};
struct FloatBlock {
  Vec v[kVecs];
};
MORACLE_VECTOR_INLINE FloatBlock load_block(const float* p) {
  FloatBlock b;
  MORACLE_VECTOR_UNROLL
  for (int i = 0; i < kVecs; ++i) b.v[i] = load(p + i * kLanes);
  return b;
}
MORACLE_VECTOR_INLINE void store_block(float* p, FloatBlock b) {
  MORACLE_VECTOR_UNROLL
  for (int i = 0; i < kVecs; ++i) store(p + i * kLanes, b.v[i]);
}

/// The low bytes of 16 elements.
MORACLE_VECTOR_INLINE void store_block(uint8_t* p, Block b) {
#if defined(MORACLE_VECTOR_AVX512)
  store(p, _mm512_cvtepi32_epi8(as<__m512i>(b.v[0])));
#elif defined(MORACLE_VECTOR_AVX2)
  // Packing works within 128-bit halves: one permutation of quarters restores the order.
  const __m256i words = _mm256_permute4x64_epi64(
      _mm256_packus_epi32(as<__m256i>(b.v[0] & 0xffu), as<__m256i>(b.v[1] & 0xffu)), 0xd8);
  store(p, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
#elif defined(__SSE2__)
  const __m128i low = _mm_packs_epi32(as<__m128i>(b.v[0] & 0xffu), as<__m128i>(b.v[1] & 0xffu));
  const __m128i high = _mm_packs_epi32(as<__m128i>(b.v[2] & 0xffu), as<__m128i>(b.v[3] & 0xffu));
  store(p, _mm_packus_epi16(low, high));
#else
  for (int i = 0; i < kBlock; ++i) p[i] = static_cast<uint8_t>(b.v[i / kLanes][i % kLanes]);
#endif
}
/// The low halves of 16 elements.
MORACLE_VECTOR_INLINE void store_block(uint16_t* p, Block b) {
#if defined(MORACLE_VECTOR_AVX512)
  store(p, _mm512_cvtepi32_epi16(as<__m512i>(b.v[0])));
#elif defined(MORACLE_VECTOR_AVX2)
  store(p, _mm256_permute4x64_epi64(
               _mm256_packus_epi32(as<__m256i>(b.v[0] & 0xffffu), as<__m256i>(b.v[1] & 0xffffu)),
               0xd8));
#elif defined(__SSE2__)
  MORACLE_VECTOR_UNROLL
  for (int i = 0; i < kVecs; i += 2) {
    // packs saturates signed values, so make the halves signed first.
    store(p + i * kLanes, _mm_packs_epi32(as<__m128i>(as<Ints>(b.v[i] << 16) >> 16),
                                          as<__m128i>(as<Ints>(b.v[i + 1] << 16) >> 16)));
  }
#else
  for (int i = 0; i < kBlock; ++i) p[i] = static_cast<uint16_t>(b.v[i / kLanes][i % kLanes]);
#endif
}
/// 16 elements, zero-extended.
MORACLE_VECTOR_INLINE Block load_block(const uint8_t* p) {
#if defined(MORACLE_VECTOR_AVX512)
  return {{as<Bits>(_mm512_cvtepu8_epi32(load_as<__m128i>(p)))}};
#elif defined(MORACLE_VECTOR_AVX2)
  const __m128i bytes = load_as<__m128i>(p);
  return {{as<Bits>(_mm256_cvtepu8_epi32(bytes)),
           as<Bits>(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))}};
#else
  Block b;
  for (int i = 0; i < kBlock; ++i) b.v[i / kLanes][i % kLanes] = p[i];
  return b;
#endif
}
MORACLE_VECTOR_INLINE Block load_block(const uint16_t* p) {
#if defined(MORACLE_VECTOR_AVX512)
  return {{as<Bits>(_mm512_cvtepu16_epi32(load_as<__m256i>(p)))}};
#elif defined(MORACLE_VECTOR_AVX2)
  return {{as<Bits>(_mm256_cvtepu16_epi32(load_as<__m128i>(p))),
           as<Bits>(_mm256_cvtepu16_epi32(load_as<__m128i>(p + kLanes)))}};
#elif defined(__SSE2__)
  const __m128i low = load_as<__m128i>(p), high = load_as<__m128i>(p + 8);
  const __m128i zero = _mm_setzero_si128();
  return {{as<Bits>(_mm_unpacklo_epi16(low, zero)), as<Bits>(_mm_unpackhi_epi16(low, zero)),
           as<Bits>(_mm_unpacklo_epi16(high, zero)), as<Bits>(_mm_unpackhi_epi16(high, zero))}};
#else
  Block b;
  for (int i = 0; i < kBlock; ++i) b.v[i / kLanes][i % kLanes] = p[i];
  return b;
#endif
}

/// out = f(x) by blocks of 16; the last partial block goes through a padded copy.
template <class From, class To, class Function>
MORACLE_VECTOR_INLINE void each_block(const From* x, int64_t count, To* out, Function f) {
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) store_block(out + i, f(load_block(x + i)));
  if (i == count) return;
  From from[kBlock] = {};
  To to[kBlock];
  __builtin_memcpy(from, x + i, static_cast<size_t>(count - i) * sizeof(From));
  store_block(to, f(load_block(from)));
  __builtin_memcpy(out + i, to, static_cast<size_t>(count - i) * sizeof(To));
}

}  // namespace
}  // namespace moracle::cpu
