// The tile loops, written once and compiled once per instruction set by the files tile_<isa>.cc.
//
// Everything is in an anonymous namespace. This header includes only <cstdint>, the compiler's
// intrinsics and tile.h. The linker keeps one copy of an inline function of any other header. If
// that copy were compiled here with AVX2, it would trap on a CPU without AVX2.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm/tile.h"

#if defined(__AVX2__)
#define MORACLE_TILE_AVX2 1
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

// Unroll the loops over registers fully, before the compiler allocates registers and stack slots.
#if defined(__clang__)
#define MORACLE_TILE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MORACLE_TILE_UNROLL _Pragma("GCC unroll 16")
#endif
#define MORACLE_TILE_INLINE [[gnu::always_inline]] inline

namespace moracle::cpu {
namespace {

/// Accumulators per loop. Two multiply-adds start per cycle. Each takes four cycles (Golden Cove,
/// Zen) or five (Haswell). Eight in flight keep the units busy and leave half of the registers to
/// weights.
constexpr int kAccumulators = 8;

/// Prefetches the panel 4096 bytes ahead. The hardware prefetcher stops at the end of each 4 KiB
/// page. With the hardware prefetcher alone, a core of Sapphire Rapids reads 8.5 GB/s of int8 codes
/// and 6.4 GB/s of int4 codes. With this prefetch one row reads 16 and 9 GB/s. Distances of 512 to
/// 2048 bytes gain less; 8192 gains no more. An address past the last panel is harmless: the
/// instruction does not fault.
MORACLE_TILE_INLINE void prefetch_ahead(const void* p) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + 4096));
}

// ---- vectors ----

#if defined(MORACLE_TILE_AVX2)

using Vec = __m256;
constexpr int kLanes = 8;

MORACLE_TILE_INLINE Vec load(const float* p) {
  return _mm256_loadu_ps(p);
}
MORACLE_TILE_INLINE void store(float* p, Vec v) {
  _mm256_storeu_ps(p, v);
}
MORACLE_TILE_INLINE Vec splat(float x) {
  return _mm256_set1_ps(x);
}
MORACLE_TILE_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
  return _mm256_fmadd_ps(a, b, c);
}

/// x[0], x[1], x[0], x[1], ...
MORACLE_TILE_INLINE Vec splat_pair(const float* x) {
  double both;
  __builtin_memcpy(&both, x, sizeof both);
  return _mm256_castpd_ps(_mm256_set1_pd(both));
}

/// a[0]+a[1], a[2]+a[3], ..., b[0]+b[1], ...
MORACLE_TILE_INLINE Vec add_pairs(Vec a, Vec b) {
  const __m256d mixed = _mm256_castps_pd(_mm256_hadd_ps(a, b));
  return _mm256_castpd_ps(_mm256_permute4x64_pd(mixed, _MM_SHUFFLE(3, 1, 2, 0)));
}

MORACLE_TILE_INLINE __m128i bytes8(const void* p) {
  return _mm_loadl_epi64(static_cast<const __m128i*>(p));
}
MORACLE_TILE_INLINE __m128i bytes16(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}

#else

using Vec = float __attribute__((vector_size(16)));
using U8x16 = uint8_t __attribute__((vector_size(16)));
using I16x8 = int16_t __attribute__((vector_size(16)));
using U16x8 = uint16_t __attribute__((vector_size(16)));
using I32x4 = int32_t __attribute__((vector_size(16)));
using U32x4 = uint32_t __attribute__((vector_size(16)));
using U64x2 = uint64_t __attribute__((vector_size(16)));
constexpr int kLanes = 4;

MORACLE_TILE_INLINE Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
MORACLE_TILE_INLINE void store(float* p, Vec v) {
  __builtin_memcpy(p, &v, sizeof v);
}
MORACLE_TILE_INLINE Vec splat(float x) {
  return Vec{x, x, x, x};
}
MORACLE_TILE_INLINE Vec splat_pair(const float* x) {
  return Vec{x[0], x[1], x[0], x[1]};
}
MORACLE_TILE_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
  return a * b + c;
}
MORACLE_TILE_INLINE Vec add_pairs(Vec a, Vec b) {
  return __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
}

// Widening doubles every element (b becomes the 16-bit value b·257), then shifts or masks. The
// result is the same on both byte orders. g++ 12 compiles the doubling to punpckl/punpckh. It
// compiles __builtin_convertvector on baseline x86-64 to four scalar moves.
MORACLE_TILE_INLINE U8x16 bytes8(const void* p) {
  uint64_t low;
  __builtin_memcpy(&low, p, sizeof low);
  return reinterpret_cast<U8x16>(U64x2{low, 0});
}
MORACLE_TILE_INLINE U16x8 double_bytes(U8x16 v) {  // the first eight bytes
  return reinterpret_cast<U16x8>(
      __builtin_shufflevector(v, v, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7));
}
MORACLE_TILE_INLINE U32x4 double_low(U16x8 v) {
  return reinterpret_cast<U32x4>(__builtin_shufflevector(v, v, 0, 0, 1, 1, 2, 2, 3, 3));
}
MORACLE_TILE_INLINE U32x4 double_high(U16x8 v) {
  return reinterpret_cast<U32x4>(__builtin_shufflevector(v, v, 4, 4, 5, 5, 6, 6, 7, 7));
}
MORACLE_TILE_INLINE U16x8 words8(const uint16_t* p) {
  U16x8 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
MORACLE_TILE_INLINE Vec to_float(I32x4 v) {
  return __builtin_convertvector(v, Vec);
}

/// f16, doubled into both halves of each element, to f32. No operand is ever a float subnormal, so
/// a caller's denormals-are-zero mode changes nothing.
MORACLE_TILE_INLINE Vec half_to_float(U32x4 doubled) {
  const U32x4 magnitude = doubled & 0x7fffu;
  const U32x4 sign = doubled & 0x80000000u;
  const Vec subnormal = to_float(reinterpret_cast<I32x4>(magnitude)) * 0x1p-24f;
  const I32x4 is_subnormal = reinterpret_cast<I32x4>(magnitude) < 0x400;
  const I32x4 is_special = reinterpret_cast<I32x4>(magnitude) > 0x7bff;
  // The exponent is rebased from 15 to 127. The exponent of infinity and NaN is rebased to 255.
  const U32x4 normal =
      (magnitude << 13) + (112u << 23) + (reinterpret_cast<U32x4>(is_special) & (112u << 23));
  const U32x4 chosen =
      (reinterpret_cast<U32x4>(subnormal) & reinterpret_cast<U32x4>(is_subnormal)) |
      (normal & ~reinterpret_cast<U32x4>(is_subnormal));
  return reinterpret_cast<Vec>(chosen | sign);
}

#endif

// ---- codecs: two vectors of weights at a time ----
//
// A codec reads 2·kLanes adjacent values of the panel and dequantizes them to two vectors of
// weights for each of kDepth successive k. It handles one k at a time, so that the registers of
// one k are free before the next k.
//
//   kStep     k that one read covers
//   kStride   stored elements of the whole panel that one read covers
//   kPerVec   columns in one vector: kLanes, or half of it where elements k and k+1 of one column
//             are adjacent and both become lanes
//   columns() permutes sums from the order of the weights into column order

struct InOrder {
  static constexpr int kPerVec = kLanes;
  MORACLE_TILE_INLINE static Vec activation(const float* x) { return splat(*x); }
  template <int kVecs>
  MORACLE_TILE_INLINE static void columns(const Vec (&sum)[kVecs], Vec (&out)[kVecs]) {
    MORACLE_TILE_UNROLL
    for (int v = 0; v < kVecs; ++v) out[v] = sum[v];
  }
};

#if defined(MORACLE_TILE_AVX2)
/// unpacklo/unpackhi work within 128-bit halves: the two vectors hold columns 0-3, 8-11 and 4-7,
/// 12-15. Exchanging halves once per sum is cheaper than widening in order at every load.
struct ByHalves : InOrder {
  MORACLE_TILE_INLINE static void columns(const Vec (&sum)[2], Vec (&out)[2]) {
    out[0] = _mm256_permute2f128_ps(sum[0], sum[1], 0x20);
    out[1] = _mm256_permute2f128_ps(sum[0], sum[1], 0x31);
  }
};
#else
using ByHalves = InOrder;
#endif

struct F32 : InOrder {
  using Weight = float;
  using Raw = const float*;
  static constexpr int kStep = 1, kDepth = 1, kStride = kPanel;
  MORACLE_TILE_INLINE Raw read(const float* p) const { return p; }
  MORACLE_TILE_INLINE void weights(Raw p, int, Vec (&w)[2]) const {
    w[0] = load(p);
    w[1] = load(p + kLanes);
  }
};

struct Bf16 : ByHalves {
  using Weight = uint16_t;
  static constexpr int kStep = 1, kDepth = 1, kStride = kPanel;
#if defined(MORACLE_TILE_AVX2)
  using Raw = __m256i;
  MORACLE_TILE_INLINE Raw read(const uint16_t* p) const {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  MORACLE_TILE_INLINE void weights(Raw codes, int, Vec (&w)[2]) const {
    // The code is the upper half of the float. Interleaving with zero widens and shifts at once. It
    // avoids the ports of the multiply-adds, which vpslld would share.
    w[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(_mm256_setzero_si256(), codes));
    w[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(_mm256_setzero_si256(), codes));
  }
#else
  using Raw = U16x8;
  MORACLE_TILE_INLINE Raw read(const uint16_t* p) const {
    return words8(p);
  }
  MORACLE_TILE_INLINE void weights(Raw codes, int, Vec (&w)[2]) const {
    w[0] = reinterpret_cast<Vec>(double_low(codes) & 0xffff0000u);
    w[1] = reinterpret_cast<Vec>(double_high(codes) & 0xffff0000u);
  }
#endif
};

struct F16 : InOrder {
  using Weight = uint16_t;
  static constexpr int kStep = 1, kDepth = 1, kStride = kPanel;
#if defined(MORACLE_TILE_AVX2)
  using Raw = const uint16_t*;
  MORACLE_TILE_INLINE Raw read(const uint16_t* p) const {
    return p;
  }
  MORACLE_TILE_INLINE void weights(Raw p, int, Vec (&w)[2]) const {
    w[0] = _mm256_cvtph_ps(bytes16(p));
    w[1] = _mm256_cvtph_ps(bytes16(p + kLanes));
  }
#else
  using Raw = U16x8;
  MORACLE_TILE_INLINE Raw read(const uint16_t* p) const {
    return words8(p);
  }
  MORACLE_TILE_INLINE void weights(Raw codes, int, Vec (&w)[2]) const {
    w[0] = half_to_float(double_low(codes));
    w[1] = half_to_float(double_high(codes));
  }
#endif
};

struct Int4 : ByHalves {
  using Weight = uint8_t;
  static constexpr int kStep = 2, kDepth = 2, kStride = kPanel;
#if defined(MORACLE_TILE_AVX2)
  // A nibble with its sign bit flipped is q + 8. With 0x4b0f as the upper 16 bits it is the float
  // 2^23 + 0xf0000 + q + 8, and one exact subtraction leaves q. With the multiply-adds this takes
  // 16 operations for 32 codes. Sign extension and vcvtdq2ps take 22, most of them on the ports of
  // the multiply-adds. 0x4b0f is also the nibble mask, since the codes are zero-extended. With one
  // more constant, the eight accumulators of four rows do not stay in registers.
  using Raw = __m256i;
  __m256i flip = _mm256_set1_epi16(0x88);
  __m256i nibble = _mm256_set1_epi16(0x4b0f);
  Vec bias = splat(0x1p23f + 0xf0000 + 8);
  MORACLE_TILE_INLINE Int4() {
    // Without this, clang 14 makes one constant of `nibble` per use, each with other unused lanes.
    asm("" : "+x"(nibble));
  }
  MORACLE_TILE_INLINE Raw read(const uint8_t* p) const {
    return _mm256_xor_si256(_mm256_cvtepu8_epi16(bytes16(p)), flip);
  }
  MORACLE_TILE_INLINE void weights(Raw codes, int d, Vec (&w)[2]) const {
    const __m256i q = d == 0 ? _mm256_and_si256(codes, nibble) : _mm256_srli_epi16(codes, 4);
    w[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(q, nibble)) - bias;
    w[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(q, nibble)) - bias;
  }
#else
  using Raw = U16x8;
  MORACLE_TILE_INLINE Raw read(const uint8_t* p) const {
    return double_bytes(bytes8(p));
  }
  MORACLE_TILE_INLINE void weights(Raw codes, int d, Vec (&w)[2]) const {
    const U32x4 q[2] = {double_low(codes), double_high(codes)};
    MORACLE_TILE_UNROLL
    for (int v = 0; v < 2; ++v) {
      w[v] = to_float(reinterpret_cast<I32x4>(d == 0 ? q[v] << 28 : q[v]) >> 28);
    }
  }
#endif
};

/// Adjacent bytes are k and k+1 of one column and become adjacent lanes. The lanes are multiplied
/// by x[k], x[k+1], x[k], ... and added at the end of the group.
struct Int8 {
  using Weight = int8_t;
  static constexpr int kStep = 2, kDepth = 1, kStride = 2 * kPanel, kPerVec = kLanes / 2;
  MORACLE_TILE_INLINE static Vec activation(const float* x) { return splat_pair(x); }
#if defined(MORACLE_TILE_AVX2)
  using Raw = const int8_t*;
  MORACLE_TILE_INLINE Raw read(const int8_t* p) const {
    return p;
  }
  MORACLE_TILE_INLINE void weights(Raw p, int, Vec (&w)[2]) const {
    w[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes8(p)));
    w[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes8(p + kLanes)));
  }
#else
  using Raw = U16x8;
  MORACLE_TILE_INLINE Raw read(const int8_t* p) const {
    return double_bytes(bytes8(p));
  }
  MORACLE_TILE_INLINE void weights(Raw codes, int, Vec (&w)[2]) const {
    w[0] = to_float(reinterpret_cast<I32x4>(double_low(codes)) >> 24);
    w[1] = to_float(reinterpret_cast<I32x4>(double_high(codes)) >> 24);
  }
#endif
  template <int kVecs>
  MORACLE_TILE_INLINE static void columns(const Vec (&sum)[kVecs], Vec (&out)[kVecs / 2]) {
    MORACLE_TILE_UNROLL
    for (int v = 0; v < kVecs / 2; ++v) out[v] = add_pairs(sum[2 * v], sum[2 * v + 1]);
  }
};

// ---- float activations ----

/// Vectors of one row in one pass: the whole panel, or a half or a quarter of it where all rows
/// together would need more than kAccumulators.
constexpr int vectors(int per_vec, int rows) {
  int n = kPanel / per_vec;
  while (n > 2 && n * rows > kAccumulators) n /= 2;
  return n;
}

template <class Codec, int kRows>
struct Pass {
  static constexpr int kVecs = vectors(Codec::kPerVec, kRows);
  static constexpr int kColumns = kVecs * Codec::kPerVec;
  static constexpr int kOut = kColumns / kLanes;
  /// With few rows, successive k accumulate into different sets, so that no multiply-add waits.
  static constexpr int kFilled = kAccumulators / (kRows * kVecs);
  static constexpr int kSets = kFilled > 0 ? kFilled : 1;
  /// Reads per iteration of the loop.
  static constexpr int kLoads = kSets > Codec::kDepth ? kSets / Codec::kDepth : 1;
  using Weight = typename Codec::Weight;
  using Sums = Vec[kSets][kRows][kVecs];

  /// Read number `load` of an iteration, and its multiply-adds.
  MORACLE_TILE_INLINE static void step(const Codec& codec, const float* const (&x)[kRows],
                                       int64_t k, const Weight* p, int load, Sums& acc) {
    MORACLE_TILE_UNROLL
    for (int v = 0; v < kVecs; v += 2) {
      const typename Codec::Raw raw =
          codec.read(p + v * (Codec::kStride / kPanel) * Codec::kPerVec);
      MORACLE_TILE_UNROLL
      for (int d = 0; d < Codec::kDepth; ++d) {
        const int set = (load * Codec::kDepth + d) % kSets;
        Vec w[2];
        codec.weights(raw, d, w);
        MORACLE_TILE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const Vec a = Codec::activation(x[r] + k + d);
          acc[set][r][v] = multiply_add(a, w[0], acc[set][r][v]);
          acc[set][r][v + 1] = multiply_add(a, w[1], acc[set][r][v + 1]);
        }
      }
    }
    // Keep the prefetch last. clang 14 treats the instruction as a fence: if it came first, clang
    // would load all activations before it, more than there are registers.
    constexpr int kBytes = Codec::kStride * static_cast<int>(sizeof(Weight));
    if (load * kBytes % 64 == 0) prefetch_ahead(p);
  }

  /// out = Σ x·w over k in [from, to) for kColumns columns; `p` is the first column's element at
  /// `from`.
  MORACLE_TILE_INLINE static void sum(const float* const (&x)[kRows], const Weight* p, int64_t from,
                                      int64_t to, Vec (&out)[kRows][kOut]) {
    const Codec codec{};
    Sums acc;
    MORACLE_TILE_UNROLL
    for (int s = 0; s < kSets; ++s) {
      MORACLE_TILE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        MORACLE_TILE_UNROLL
        for (int v = 0; v < kVecs; ++v) acc[s][r][v] = splat(0);
      }
    }
    int64_t k = from;
    for (; to - k >= kLoads * Codec::kStep; k += kLoads * Codec::kStep) {
      MORACLE_TILE_UNROLL
      for (int load = 0; load < kLoads; ++load, p += Codec::kStride) {
        step(codec, x, k + load * Codec::kStep, p, load, acc);
      }
    }
    if constexpr (kLoads > 1) {
      for (; k < to; k += Codec::kStep, p += Codec::kStride) step(codec, x, k, p, 0, acc);
    }
    MORACLE_TILE_UNROLL
    for (int s = 1; s < kSets; ++s) {
      MORACLE_TILE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        MORACLE_TILE_UNROLL
        for (int v = 0; v < kVecs; ++v) acc[0][r][v] += acc[s][r][v];
      }
    }
    MORACLE_TILE_UNROLL
    for (int r = 0; r < kRows; ++r) Codec::columns(acc[0][r], out[r]);
  }
};

template <class Codec, int kRows>
void float_rows(const float* const* rows, const typename Codec::Weight* panel, int64_t k,
                float* y) {
  using P = Pass<Codec, kRows>;
  const float* x[kRows];
  MORACLE_TILE_UNROLL
  for (int r = 0; r < kRows; ++r) x[r] = rows[r];
  for (int c = 0; c < kPanel; c += P::kColumns) {
    Vec out[kRows][P::kOut];
    P::sum(x, panel + c, 0, k, out);
    MORACLE_TILE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      MORACLE_TILE_UNROLL
      for (int v = 0; v < P::kOut; ++v) store(y + r * kPanel + c + v * kLanes, out[r][v]);
    }
  }
}

template <class Codec, int kRows>
void group_rows(const float* const* rows, const typename Codec::Weight* panel, const float* scales,
                int64_t k, int64_t group, float* y) {
  using P = Pass<Codec, kRows>;
  const float* x[kRows];
  MORACLE_TILE_UNROLL
  for (int r = 0; r < kRows; ++r) x[r] = rows[r];
  for (int i = 0; i < kRows * kPanel; i += kLanes) store(y + i, splat(0));
  // Keep the totals in y (256 bytes of L1). The sums leave too few registers for them.
  for (int64_t from = 0; from < k; scales += kPanel) {
    const int64_t to = k - from > group ? from + group : k;
    const typename Codec::Weight* p = panel + from / Codec::kStep * Codec::kStride;
    for (int c = 0; c < kPanel; c += P::kColumns) {
      Vec out[kRows][P::kOut];
      P::sum(x, p + c * (Codec::kStride / kPanel), from, to, out);
      MORACLE_TILE_UNROLL
      for (int v = 0; v < P::kOut; ++v) {
        const Vec scale = load(scales + c + v * kLanes);
        MORACLE_TILE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          float* total = y + r * kPanel + c + v * kLanes;
          store(total, multiply_add(out[r][v], scale, load(total)));
        }
      }
    }
    from = to;
  }
}

// ---- 8-bit activations ----

#if defined(MORACLE_TILE_AVX2)
using Sum32 = __m256i;
using Wide = __m256i;
MORACLE_TILE_INLINE Wide widen(const int8_t* p) {
  return _mm256_cvtepi8_epi16(bytes16(p));
}
MORACLE_TILE_INLINE Wide splat_pair(const int16_t* x) {
  int32_t both;
  __builtin_memcpy(&both, x, sizeof both);
  return _mm256_set1_epi32(both);
}
/// Use vpmaddwd, which cannot overflow here. vpmaddubsw takes bytes but saturates its 16-bit sums.
MORACLE_TILE_INLINE Sum32 dot_pairs(Wide a, Wide b, Sum32 sum) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}
MORACLE_TILE_INLINE Vec to_float(Sum32 v) {
  return _mm256_cvtepi32_ps(v);
}
#else
using Sum32 = I32x4;
using Wide = I16x8;
MORACLE_TILE_INLINE Wide widen(const int8_t* p) {
  return reinterpret_cast<I16x8>(double_bytes(bytes8(p))) >> 8;
}
MORACLE_TILE_INLINE Wide splat_pair(const int16_t* x) {
  int32_t both;
  __builtin_memcpy(&both, x, sizeof both);
  return reinterpret_cast<I16x8>(I32x4{both, both, both, both});
}
MORACLE_TILE_INLINE Sum32 dot_pairs(Wide a, Wide b, Sum32 sum) {
#if defined(__SSE2__)
  return sum + reinterpret_cast<I32x4>(
                   _mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  const U32x4 products = reinterpret_cast<U32x4>(a * b);  // each at most 2^14 in size
  return sum + (reinterpret_cast<I32x4>(products << 16) >> 16) +
         (reinterpret_cast<I32x4>(products) >> 16);
#endif
}
#endif

template <int kRows>
void int8_int8_rows(const int8_t* const* rows, const float* x_scale, const int8_t* panel,
                    const float* scales, int64_t k, float* y) {
  constexpr int kVecs = vectors(kLanes, kRows);
  // Widen activations once per chunk, so that the inner loop takes two k of a row with one
  // broadcast from memory and no shuffle.
  constexpr int kChunk = 256;
  int16_t x[kRows][kChunk];
  for (int c = 0; c < kPanel; c += kVecs * kLanes) {
    Sum32 acc[kRows][kVecs] = {};
    for (int64_t from = 0; from < k; from += kChunk) {
      const int64_t count = k - from < kChunk ? k - from : kChunk;
      for (int r = 0; r < kRows; ++r) {
        for (int64_t i = 0; i < count; ++i) x[r][i] = rows[r][from + i];
      }
      const int8_t* p = panel + from * kPanel + c * 2;
      for (int64_t i = 0; i < count; i += 2, p += 2 * kPanel) {
        MORACLE_TILE_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          const Wide w = widen(p + v * 2 * kLanes);
          MORACLE_TILE_UNROLL
          for (int r = 0; r < kRows; ++r) {
            acc[r][v] = dot_pairs(splat_pair(x[r] + i), w, acc[r][v]);
          }
        }
        prefetch_ahead(p);
      }
    }
    MORACLE_TILE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      MORACLE_TILE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        const int at = c + v * kLanes;
        store(y + r * kPanel + at, to_float(acc[r][v]) * (load(scales + at) * splat(x_scale[r])));
      }
    }
  }
}

// ---- the table ----

template <class Codec>
void float_tile(const float* const* x, int rows, const typename Codec::Weight* panel, int64_t k,
                float* y) {
  switch (rows) {
    case 1:
      return float_rows<Codec, 1>(x, panel, k, y);
    case 2:
      return float_rows<Codec, 2>(x, panel, k, y);
    case 3:
      return float_rows<Codec, 3>(x, panel, k, y);
    case 4:
      return float_rows<Codec, 4>(x, panel, k, y);
  }
}

template <class Codec>
void group_tile(const float* const* x, int rows, const typename Codec::Weight* panel,
                const float* scales, int64_t k, int64_t group, float* y) {
  switch (rows) {
    case 1:
      return group_rows<Codec, 1>(x, panel, scales, k, group, y);
    case 2:
      return group_rows<Codec, 2>(x, panel, scales, k, group, y);
    case 3:
      return group_rows<Codec, 3>(x, panel, scales, k, group, y);
    case 4:
      return group_rows<Codec, 4>(x, panel, scales, k, group, y);
  }
}

void int8_int8_tile(const int8_t* const* x, const float* x_scale, int rows, const int8_t* panel,
                    const float* scales, int64_t k, float* y) {
  switch (rows) {
    case 1:
      return int8_int8_rows<1>(x, x_scale, panel, scales, k, y);
    case 2:
      return int8_int8_rows<2>(x, x_scale, panel, scales, k, y);
    case 3:
      return int8_int8_rows<3>(x, x_scale, panel, scales, k, y);
    case 4:
      return int8_int8_rows<4>(x, x_scale, panel, scales, k, y);
  }
}
static_assert(kMaxRows == 4 && kPanel == 16,
              "the switches and the accumulators are made for these");

constexpr TileKernels table(const char* isa) {
  return {isa,
          float_tile<F32>,
          float_tile<Bf16>,
          float_tile<F16>,
          group_tile<Int4>,
          group_tile<Int8>,
          int8_int8_tile};
}

}  // namespace
}  // namespace moracle::cpu
