// Elements of cached keys and values, and attention scores: dot products of queries and keys. A
// vector of one query is multiplied by the vectors of four keys. The order of a sum depends on the
// length alone. Elements are floats, or floats of 16 or 8 bits, which are widened exactly on load.
#pragma once

#include "kernels/cpu/simd/vector_convert.h"

namespace moracle::cpu {
namespace {

// ---- elements ----

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

// ---- scores ----

/// Prefetches rows of memory, one cache line per step, during the computation. The hardware
/// prefetcher does not cross the gaps between rows.
struct Prefetcher {
  const char* row = nullptr;
  int64_t stride = 0, bytes = 0, rows = 0;  ///< bytes from row to row, bytes per row, rows left
  int64_t at = 0;

  MORACLE_VECTOR_INLINE void step() {
    if (rows == 0) return;
    __builtin_prefetch(row + at, 0, 2);
    at += 64;
    if (at < bytes) return;
    at = 0, row += stride, --rows;
  }
};

/// Queries that share four keys in registers: 16 sums, or 8 with 16 registers.
constexpr int kQueries = kLanes == 16 ? 4 : 2;
/// Prefetch distance, in keys.
constexpr int kKeysAhead = 16;
using Four = float __attribute__((vector_size(16)));

/// Each 128-bit part: a[0]+a[2], b[0]+b[2], a[1]+a[3], b[1]+b[3].
MORACLE_VECTOR_INLINE Vec add_far(Vec a, Vec b) {
#if defined(MORACLE_VECTOR_AVX512)
  return _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b);
#elif defined(MORACLE_VECTOR_AVX2)
  return _mm256_unpacklo_ps(a, b) + _mm256_unpackhi_ps(a, b);
#else
  return __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}
/// Each 128-bit part: a[0]+a[2], a[1]+a[3], b[0]+b[2], b[1]+b[3].
MORACLE_VECTOR_INLINE Vec add_near(Vec a, Vec b) {
#if defined(MORACLE_VECTOR_AVX512)
  return _mm512_shuffle_ps(a, b, 0x44) + _mm512_shuffle_ps(a, b, 0xee);
#elif defined(MORACLE_VECTOR_AVX2)
  return _mm256_shuffle_ps(a, b, 0x44) + _mm256_shuffle_ps(a, b, 0xee);
#else
  return __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
#endif
}
/// The sum of the lanes of each of the four vectors.
MORACLE_VECTOR_INLINE Four lane_sums(const Vec (&v)[4]) {
  const Vec sums = add_near(add_far(v[0], v[1]), add_far(v[2], v[3]));
#if defined(MORACLE_VECTOR_AVX512)
  const __m256 half = _mm512_castps512_ps256(sums) + _mm512_extractf32x8_ps(sums, 1);
  return _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1);
#elif defined(MORACLE_VECTOR_AVX2)
  return _mm256_castps256_ps128(sums) + _mm256_extractf128_ps(sums, 1);
#else
  return sums;
#endif
}

/// to[r][0, 4) = q[r] · keys[0, 4)
template <int kRows, class Element>
MORACLE_VECTOR_INLINE void dots(const float* const* q, const Element* const (&keys)[4], int64_t dim,
                                float* const* to) {
  Vec sum[kRows][4] = {};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    Vec key[4];
    MORACLE_VECTOR_UNROLL
    for (int j = 0; j < 4; ++j) key[j] = load(keys[j] + d);
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vec x = load(q[r] + d);
      MORACLE_VECTOR_UNROLL
      for (int j = 0; j < 4; ++j) sum[r][j] = multiply_add(x, key[j], sum[r][j]);
    }
  }
  if (d < dim) {
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vec x = load_first(q[r] + d, dim - d);
      MORACLE_VECTOR_UNROLL
      for (int j = 0; j < 4; ++j)
        sum[r][j] = multiply_add(x, load_first(keys[j] + d, dim - d), sum[r][j]);
    }
  }
  MORACLE_VECTOR_UNROLL
  for (int r = 0; r < kRows; ++r) store(to[r], lane_sums(sum[r]));
}

}  // namespace
}  // namespace moracle::cpu
