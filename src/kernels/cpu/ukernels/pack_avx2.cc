// Rows of floats as limbs of int8, and as int16 in the order of columns of dot_int16_avx2.h.

#if defined(__x86_64__)

#include "kernels/cpu/simd/vector.h"
#include "kernels/cpu/ukernels/float_limbs.h"

namespace moracle::cpu {
namespace {

/// Eight floats as words, columns 0, 2, 1, 3, 4, 6, 5, 7.
MORACLE_VECTOR_INLINE __m128i eight_words(__m256i codes) {
  const __m256i words = _mm256_packs_epi32(codes, codes);
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 0, 1, 4, 5, 2, 3, 6, 7));
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_shuffle_epi8(words, order), 0x08));
}

MORACLE_VECTOR_INLINE int32_t sum_of(__m256i lanes) {
  const __m128i four =
      _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

/// Converts one run and returns the sum of its codes.
int32_t run_to_int16(const float* from, int64_t count, float steps, std::byte* to) {
  const __m256 factor = _mm256_set1_ps(steps);
  __m256i sum = _mm256_setzero_si256();
  for (int64_t i = 0; i < count; i += 8) {
    float last[8] = {};
    const float* x = from + i;
    if (count - i < 8) {
      __builtin_memcpy(last, x, static_cast<size_t>(count - i) * sizeof(float));
      x = last;
    }
    const __m256i codes = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor));
    sum = _mm256_add_epi32(sum, codes);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i * 2), eight_words(codes));
  }
  return sum_of(sum);
}

}  // namespace

void pack_f32_to_i8_avx2(const PackArgs& a) {
  f32_to_limbs(a);
}
void pack_f32_to_i16_avx2(const PackArgs& a) {
  const auto* const from = static_cast<const float*>(a.from);
  int32_t* sums = a.sums;
  float* scales = a.scales;
  for (int64_t at = 0; at < a.count; at += a.segment) {
    const int64_t length = a.segment < a.count - at ? a.segment : a.count - at;
    const int32_t bits = largest_bits(from + at, length);
    const bool finite = bits < 0x7f800000;
    const float largest = __builtin_bit_cast(float, bits);
    // Tiny values have fewer steps, so that their number stays finite.
    const float steps = finite ? kInt16Steps / (largest > 0x1p-100f ? largest : 0x1p-100f) : 0;
    if (finite) {
      *sums++ = run_to_int16(from + at, length, steps, a.to + at * 2);
    } else {
      __builtin_memset(a.to + at * 2, 0, static_cast<size_t>((length + 7) / 8 * 16));
      *sums++ = 0;
    }
    *scales++ = finite ? 1 / steps : __builtin_nanf("");
  }
}

}  // namespace moracle::cpu

#endif
