// Vectors of one instruction set. Most arithmetic uses the compilers' own vector types. This header
// holds the differences between instruction sets.
//
// Only files that the build compiles for one instruction set (<name>_<isa>.cc) include it.
//
// Everything is in an anonymous namespace, and these files use no function of another header. The
// linker keeps one copy of an inline function. A copy compiled here with AVX would trap on a CPU
// without AVX. The test Kernels.FilesOfOneInstructionSetShareNoFunctions checks the object files.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX512F__)
#define MORACLE_VECTOR_AVX512 1
#include <immintrin.h>
#elif defined(__AVX2__)
#define MORACLE_VECTOR_AVX2 1
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(__clang__)
#define MORACLE_VECTOR_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MORACLE_VECTOR_UNROLL _Pragma("GCC unroll 16")
#endif
#define MORACLE_VECTOR_INLINE [[gnu::always_inline]] inline

namespace moracle::cpu {
namespace {

#if defined(MORACLE_VECTOR_AVX512)
constexpr int kLanes = 16;
#elif defined(MORACLE_VECTOR_AVX2)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
using Vec = float __attribute__((vector_size(4 * kLanes)));
using Ints = int32_t __attribute__((vector_size(4 * kLanes)));
using Bits = uint32_t __attribute__((vector_size(4 * kLanes)));

template <class To, class From>
MORACLE_VECTOR_INLINE To as(From v) {
  return reinterpret_cast<To>(v);
}

template <class T>
MORACLE_VECTOR_INLINE T load_as(const void* p) {
  T v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
MORACLE_VECTOR_INLINE Vec load(const float* p) {
  return load_as<Vec>(p);
}
template <class T>
MORACLE_VECTOR_INLINE void store(void* p, T v) {
  __builtin_memcpy(p, &v, sizeof v);
}
/// Stores past the caches, to an aligned address. Call stream_fence() after the last one.
MORACLE_VECTOR_INLINE void stream(float* p, Vec v) {
#if defined(MORACLE_VECTOR_AVX512)
  _mm512_stream_ps(p, as<__m512>(v));
#elif defined(MORACLE_VECTOR_AVX2)
  _mm256_stream_ps(p, as<__m256>(v));
#else
  store(p, v);
#endif
}
/// Orders streamed stores before later ones, which tell other threads that they are done.
MORACLE_VECTOR_INLINE void stream_fence() {
#if defined(MORACLE_VECTOR_AVX512) || defined(MORACLE_VECTOR_AVX2)
  _mm_sfence();
#endif
}
MORACLE_VECTOR_INLINE Vec splat(float x) {
  return x - Vec{};  // minus, since 0 + -0 is 0
}
MORACLE_VECTOR_INLINE Bits splat_bits(uint32_t x) {
  return x + Bits{};
}
MORACLE_VECTOR_INLINE Vec to_float(Ints v) {
  return __builtin_convertvector(v, Vec);
}

#if defined(MORACLE_VECTOR_AVX2)
MORACLE_VECTOR_INLINE __m256i first_lanes(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
#endif
/// Loads the first `count` < kLanes elements. The other lanes are 0, and their memory is not read.
MORACLE_VECTOR_INLINE Vec load_first(const float* p, int64_t count) {
#if defined(MORACLE_VECTOR_AVX512)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p);
#elif defined(MORACLE_VECTOR_AVX2)
  return _mm256_maskload_ps(p, first_lanes(count));
#else
  Vec v{};
  __builtin_memcpy(&v, p, static_cast<size_t>(count) * sizeof(float));
  return v;
#endif
}
MORACLE_VECTOR_INLINE void store_first(float* p, Vec v, int64_t count) {
#if defined(MORACLE_VECTOR_AVX512)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), v);
#elif defined(MORACLE_VECTOR_AVX2)
  _mm256_maskstore_ps(p, first_lanes(count), v);
#else
  __builtin_memcpy(p, &v, static_cast<size_t>(count) * sizeof(float));
#endif
}

MORACLE_VECTOR_INLINE Vec select(Ints where, Vec a, Vec b) {
  return where ? a : b;
}
MORACLE_VECTOR_INLINE Bits select(Ints where, Bits a, Bits b) {
  return where ? a : b;
}
/// Keeps a NaN in x.
MORACLE_VECTOR_INLINE Vec at_most(Vec x, Vec limit) {
  return select(x > limit, limit, x);
}
MORACLE_VECTOR_INLINE Vec at_least(Vec x, Vec limit) {
  return select(x < limit, limit, x);
}
MORACLE_VECTOR_INLINE Ints larger(Ints a, Ints b) {
#if defined(MORACLE_VECTOR_AVX512)
  return as<Ints>(_mm512_max_epi32(as<__m512i>(a), as<__m512i>(b)));
#elif defined(MORACLE_VECTOR_AVX2)
  return as<Ints>(_mm256_max_epi32(as<__m256i>(a), as<__m256i>(b)));
#else
  return a > b ? a : b;
#endif
}

/// The bytes of a table of 16 under numbers of 4 bits, four in a lane.
MORACLE_VECTOR_INLINE Bits lookup_bytes(const int8_t* table, Bits numbers) {
#if defined(MORACLE_VECTOR_AVX512)
  const __m512i values = _mm512_broadcast_i32x4(load_as<__m128i>(table));
  return as<Bits>(_mm512_shuffle_epi8(values, as<__m512i>(numbers)));
#elif defined(MORACLE_VECTOR_AVX2)
  const __m256i values = _mm256_broadcastsi128_si256(load_as<__m128i>(table));
  return as<Bits>(_mm256_shuffle_epi8(values, as<__m256i>(numbers)));
#else
  Bits bytes{};
  for (unsigned shift = 0; shift < 32; shift += 8) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int8_t byte = table[numbers[lane] >> shift & 15];
      bytes[lane] |= static_cast<uint32_t>(static_cast<uint8_t>(byte)) << shift;
    }
  }
  return bytes;
#endif
}
/// Whether any byte has its highest bit.
MORACLE_VECTOR_INLINE bool any_high_bit(Bits bytes) {
#if defined(MORACLE_VECTOR_AVX512)
  return _mm512_movepi8_mask(as<__m512i>(bytes)) != 0;
#elif defined(MORACLE_VECTOR_AVX2)
  return _mm256_movemask_epi8(as<__m256i>(bytes)) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_epi8(as<__m128i>(bytes)) != 0;
#else
  uint32_t all = 0;
  for (int lane = 0; lane < kLanes; ++lane) all |= bytes[lane];
  return (all & 0x80808080u) != 0;
#endif
}

using Half = float __attribute__((vector_size(2 * kLanes)));
using Doubles = double __attribute__((vector_size(4 * kLanes)));
constexpr int kHalf = kLanes / 2;
MORACLE_VECTOR_INLINE Doubles widen(Half v) {
#if defined(MORACLE_VECTOR_AVX512)
  return _mm512_cvtps_pd(v);
#elif defined(MORACLE_VECTOR_AVX2)
  return _mm256_cvtps_pd(v);
#else
  return __builtin_convertvector(v, Doubles);
#endif
}
MORACLE_VECTOR_INLINE Half narrow(Doubles v) {
#if defined(MORACLE_VECTOR_AVX512)
  return _mm512_cvtpd_ps(v);
#elif defined(MORACLE_VECTOR_AVX2)
  return _mm256_cvtpd_ps(v);
#else
  return __builtin_convertvector(v, Half);
#endif
}

MORACLE_VECTOR_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
#if defined(MORACLE_VECTOR_AVX512)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(MORACLE_VECTOR_AVX2)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
/// The sum of all lanes.
MORACLE_VECTOR_INLINE float total(Vec v) {
#if defined(MORACLE_VECTOR_AVX512)
  return _mm512_reduce_add_ps(v);
#elif defined(MORACLE_VECTOR_AVX2)
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}
/// Σ c[i] x^i
template <int kTerms>
MORACLE_VECTOR_INLINE Vec polynomial(const float (&c)[kTerms], Vec x) {
  Vec sum = splat(c[kTerms - 1]);
  MORACLE_VECTOR_UNROLL
  for (int i = kTerms - 2; i >= 0; --i) sum = multiply_add(sum, x, splat(c[i]));
  return sum;
}

}  // namespace
}  // namespace moracle::cpu
