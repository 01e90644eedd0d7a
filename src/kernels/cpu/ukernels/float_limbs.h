// Floats as sums of int8 limbs (PACK(f32, i8)). The compiler makes vectors of
// these loops for the instruction set of the file that includes them.
#pragma once

#include <emmintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/ukernels/args.h"

namespace moracle::cpu {
namespace {

/// The bits of the largest magnitude; those of infinity and NaN are larger than all others.
inline int32_t largest_bits(const float* from, int64_t count) {
  int32_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t size = __builtin_bit_cast(int32_t, from[i]) & 0x7fffffff;
    most = size > most ? size : most;
  }
  return most;
}

inline void run_to_limbs(const float* from, int64_t count, float steps, int8_t* first,
                         int8_t* second, int8_t* third, int32_t (&sums)[kLimbs]) {
  constexpr float kRadix = kLimbRadix;
  // Added and subtracted, it rounds a float below 2^22 to an integer.
  constexpr float kRound = 0x1.8p23f;
  int32_t sum[kLimbs] = {};
  for (int64_t i = 0; i < count; ++i) {
    // All values are integers below 2^23, so differences are exact; a quotient may round to either
    // neighbour, and the rest then makes up for it.
    const float all = __builtin_rintf(from[i] * steps);
    const float high = all * (1 / (kRadix * kRadix)) + kRound - kRound;
    const float rest = all - high * (kRadix * kRadix);
    const float middle = rest * (1 / kRadix) + kRound - kRound;
    const float low = rest - middle * kRadix;
    const auto a = static_cast<int32_t>(high), b = static_cast<int32_t>(middle),
               c = static_cast<int32_t>(low);
    first[i] = static_cast<int8_t>(a);
    second[i] = static_cast<int8_t>(b);
    third[i] = static_cast<int8_t>(c);
    sum[0] += a, sum[1] += b, sum[2] += c;
  }
  for (int p = 0; p < kLimbs; ++p) sums[p] = sum[p];
}

/// Sums of short segments. Σ |code + 128| of 8 bytes is one instruction.
inline void sum_segments(const int8_t* codes, int64_t count, int64_t segment, int32_t* sums) {
  const __m128i offset = _mm_set1_epi8(-128);
  for (int64_t begin = 0; begin < count; begin += segment) {
    const int64_t end = begin + segment < count ? begin + segment : count;
    __m128i eights = _mm_setzero_si128();
    int64_t i = begin;
    for (; i + 16 <= end; i += 16) {
      const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
      eights =
          _mm_add_epi32(eights, _mm_sad_epu8(_mm_xor_si128(some, offset), _mm_setzero_si128()));
    }
    int32_t sum = _mm_cvtsi128_si32(_mm_add_epi32(eights, _mm_srli_si128(eights, 8))) -
                  128 * static_cast<int32_t>(i - begin);
    for (; i < end; ++i) sum += codes[i];
    *sums++ = sum;
  }
}

inline void f32_to_limbs(const PackArgs& a) {
  constexpr float kRadix = kLimbRadix, kMost = 127 * kRadix * kRadix;
  const auto* const from = static_cast<const float*>(a.from);
  const int64_t cols = a.segment * a.scale_segments;
  const int64_t scales = (a.segments + a.scale_segments - 1) / a.scale_segments;
  for (int64_t s = 0, at = 0; s < scales; ++s, at += cols) {
    const int64_t length = cols < a.count - at ? cols : a.count - at;
    const int32_t bits = largest_bits(from + at, length);
    const bool finite = bits < 0x7f800000;
    const float largest = finite ? __builtin_bit_cast(float, bits) : 0;
    // Tiny values have fewer steps, so that their number stays finite.
    const float steps = kMost / (largest > 0x1p-100f ? largest : 0x1p-100f);
    int32_t sum[kLimbs] = {};
    int8_t* const codes = reinterpret_cast<int8_t*>(a.to) + at;
    if (finite) {
      run_to_limbs(from + at, length, steps, codes, codes + a.limb_stride,
                   codes + 2 * a.limb_stride, sum);
    } else {
      for (int p = 0; p < kLimbs; ++p)
        __builtin_memset(codes + p * a.limb_stride, 0, static_cast<size_t>(length));
    }
    for (int p = 0; p < kLimbs; ++p) {
      int32_t* const to = a.sums + p * a.segments + s * a.scale_segments;
      if (a.scale_segments == 1)
        *to = sum[p];
      else
        sum_segments(codes + p * a.limb_stride, length, a.segment, to);
    }
    float scale = finite ? 1 / steps : __builtin_nanf("");
    for (int p = kLimbs - 1; p >= 0; --p, scale *= kRadix) a.scales[p * scales + s] = scale;
  }
}

}  // namespace
}  // namespace moracle::cpu
