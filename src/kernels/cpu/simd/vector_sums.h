// Sums and products of rows.
#pragma once

#include "kernels/cpu/simd/vector.h"

namespace moracle::cpu {
namespace {

/// out = Σ_j weights[j] · rows[j], j ascending; added to `out` if `onto`.
template <int kWide>
MORACLE_VECTOR_INLINE void weigh(const float* const* rows, const float* weights, int64_t num_rows,
                                 int64_t at, bool onto, float* out) {
  Vec sum[kWide];
  MORACLE_VECTOR_UNROLL
  for (int v = 0; v < kWide; ++v) sum[v] = onto ? load(out + at + v * kLanes) : Vec{};
  for (int64_t j = 0; j < num_rows; ++j) {
    const Vec weight = splat(weights[j]);
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kWide; ++v)
      sum[v] = multiply_add(weight, load(rows[j] + at + v * kLanes), sum[v]);
  }
  MORACLE_VECTOR_UNROLL
  for (int v = 0; v < kWide; ++v) store(out + at + v * kLanes, sum[v]);
}
void weighted_sum(const float* const* rows, const float* weights, int64_t num_rows, int64_t count,
                  bool onto, float* out) {
  constexpr int kWide = 4;
  int64_t at = 0;
  for (; at + kWide * kLanes <= count; at += kWide * kLanes)
    weigh<kWide>(rows, weights, num_rows, at, onto, out);
  for (; at + kLanes <= count; at += kLanes) weigh<1>(rows, weights, num_rows, at, onto, out);
  const int64_t left = count - at;
  if (left == 0) return;
  Vec sum = onto ? load_first(out + at, left) : Vec{};
  for (int64_t j = 0; j < num_rows; ++j)
    sum = multiply_add(splat(weights[j]), load_first(rows[j] + at, left), sum);
  store_first(out + at, sum, left);
}

void add(const float* x, int64_t count, float* y) {
  each(x, y, count, y, [](Vec a, Vec b) { return b + a; });
}
void scale(const float* x, float factor, int64_t count, float* out) {
  each(x, x, count, out, [factor](Vec a, Vec) { return a * factor; });
}

float dot(const float* a, const float* b, int64_t count) {
  Vec sum[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < 4; ++v)
      sum[v] = multiply_add(load(a + i + v * kLanes), load(b + i + v * kLanes), sum[v]);
  }
  for (; i + kLanes <= count; i += kLanes) sum[0] = multiply_add(load(a + i), load(b + i), sum[0]);
  if (i < count)
    sum[1] = multiply_add(load_first(a + i, count - i), load_first(b + i, count - i), sum[1]);
  const Vec all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  float total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += all[lane];
  return total;
}

void group_sums(const float* x, int64_t count, int64_t group, float* sums) {
  for (int64_t i = 0; i < count; ++sums) {
    const int64_t end = i + group < count ? i + group : count;
    Vec sum{};
    for (; i + kLanes <= end; i += kLanes) sum += load(x + i);
    if (i < end) sum += load_first(x + i, end - i);
    i = end;
    *sums = total(sum);
  }
}

void code_sums(const int8_t* codes, int64_t count, int64_t group, int32_t* sums) {
  for (int64_t i = 0; i < count;) {
    const int64_t end = i + group < count ? i + group : count;
    int32_t sum = 0;
#if defined(__SSE2__)
    // Σ |code + 128| of 8 bytes is one instruction.
    const int64_t begin = i;
    __m128i eights = _mm_setzero_si128();
    for (; i + 16 <= end; i += 16) {
      const __m128i some = _mm_xor_si128(load_as<__m128i>(codes + i), _mm_set1_epi8(-128));
      eights = _mm_add_epi32(eights, _mm_sad_epu8(some, _mm_setzero_si128()));
    }
    sum = _mm_cvtsi128_si32(_mm_add_epi32(eights, _mm_srli_si128(eights, 8))) -
          128 * static_cast<int32_t>(i - begin);
#endif
    for (; i < end; ++i) sum += codes[i];
    *sums++ = sum;
  }
}

// Squares are summed in double: the square of an f32 value may overflow or underflow in f32.
double sum_of_squares(const float* x, int64_t count) {
  Doubles sum[4] = {};
  int64_t i = 0;
  for (; i + 4 * kHalf <= count; i += 4 * kHalf) {
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < 4; ++v) {
      const Doubles wide = widen(load_as<Half>(x + i + v * kHalf));
      sum[v] += wide * wide;
    }
  }
  const Doubles all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  double total = 0;
  for (int lane = 0; lane < kHalf; ++lane) total += all[lane];
  for (; i < count; ++i) total += static_cast<double>(x[i]) * x[i];
  return total;
}
void scale_by(const float* x, float factor, const float* weight, int64_t count, float* out) {
  each(x, weight, count, out, [factor](Vec a, Vec w) { return a * factor * w; });
}

float largest(const float* x, int64_t count) {
  const Vec least = splat(-__builtin_inff());
  Vec found[4] = {least, least, least, least};
  Ints nan[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < 4; ++v) {
      const Vec next = load(x + i + v * kLanes);
      found[v] = at_least(found[v], next);
      nan[v] |= next != next;
    }
  }
  const Vec all = at_least(at_least(found[0], found[1]), at_least(found[2], found[3]));
  const Ints any = nan[0] | nan[1] | nan[2] | nan[3];
  float result = all[0];
  bool is_nan = false;
  for (int lane = 0; lane < kLanes; ++lane) {
    result = all[lane] > result ? all[lane] : result;
    is_nan = is_nan || any[lane] != 0;
  }
  for (; i < count; ++i) {
    result = x[i] > result ? x[i] : result;
    is_nan = is_nan || x[i] != x[i];
  }
  return is_nan ? __builtin_nanf("") : result;
}

}  // namespace
}  // namespace moracle::cpu
