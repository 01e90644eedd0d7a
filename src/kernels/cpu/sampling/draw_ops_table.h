// The functions of DrawOps for the instruction set that the including file is compiled for.
#pragma once

#include "kernels/cpu/sampling/draw_ops.h"
#include "kernels/cpu/simd/vector.h"

namespace moracle::cpu {
namespace {

using Longs = int64_t __attribute__((vector_size(4 * kLanes)));

/// Rounds weights to units of 2^-42, by adding a number whose last bit is that unit, and sums the
/// bits of the results.
class WeightSum {
 public:
  static_assert(kWeightBits == 42);
  static constexpr double kRound = 0x1.8p10;
  static constexpr uint64_t kRoundBits = 0x4098000000000000;

  MORACLE_VECTOR_INLINE void add(Vec weights) {
    Half halves[2];
    __builtin_memcpy(halves, &weights, sizeof halves);
    first_ += as<Longs>(widen(halves[0]) + kRound);
    second_ += as<Longs>(widen(halves[1]) + kRound);
    lanes_ += kLanes;
  }
  MORACLE_VECTOR_INLINE uint64_t total() const {
    const Longs all = first_ + second_;
    uint64_t sum = 0;
    for (int lane = 0; lane < kHalf; ++lane) sum += static_cast<uint64_t>(all[lane]);
    return sum - lanes_ * kRoundBits;
  }

 private:
  Longs first_{}, second_{};
  uint64_t lanes_ = 0;
};

/// 2^y for y <= 0, or 0. n = round(y); the polynomial for (2^f - 1) / f on ±1/2 is off by 2^-27.
MORACLE_VECTOR_INLINE Vec weight(Vec y) {
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it leaves the integer in the low bits
  constexpr float kTerms[] = {0.69314718f,  0.24022651f,   0.05550357f,
                              0.009618057f, 0.0013390867f, 0.00015461448f};
  const Ints is_small = y < static_cast<float>(-kWeightBits);
  y = at_least(y, splat(static_cast<float>(-kWeightBits)));
  const Vec shifted = y + kRound;
  const Vec f = y - (shifted - kRound);
  Vec sum = splat(kTerms[5]);
  MORACLE_VECTOR_UNROLL
  for (int i = 4; i >= 0; --i) sum = sum * f + kTerms[i];
  const Vec power = sum * f + 1.0f;
  const Ints n = as<Ints>(shifted) - 0x4b400000;
  return select(is_small, Vec{}, as<Vec>(as<Ints>(power) + (n << 23)));
}

uint64_t weights_of(const float* logits, int64_t count, float most, float scale, float* weights) {
  WeightSum sum;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec w = weight((load(logits + i) - most) * scale);
    store(weights + i, w);
    sum.add(w);
  }
  if (const int64_t left = count - i; left > 0) {
    store_first(weights + i, weight((load_first(logits + i, left) - most) * scale), left);
    sum.add(load_first(weights + i, left));
  }
  return sum.total();
}

MORACLE_VECTOR_INLINE Vec within(Vec w, float least, float below) {
  return select((w >= least) & (w < below), w, Vec{});
}

uint64_t keep_weights(float* weights, int64_t count, float least, float below) {
  WeightSum sum;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec w = within(load(weights + i), least, below);
    store(weights + i, w);
    sum.add(w);
  }
  if (const int64_t left = count - i; left > 0) {
    const Vec w = within(load_first(weights + i, left), least, below);
    store_first(weights + i, w, left);
    sum.add(load_first(weights + i, left));
  }
  return sum.total();
}

void add_by_bits(const float* weights, int64_t count, uint32_t first, int shift, uint64_t* sums) {
  const Ints from = as<Ints>(splat_bits(first));
  uint32_t places[kLanes];
  uint64_t units[kLanes];
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec w = count - i < kLanes ? load_first(weights + i, count - i) : load(weights + i);
    store(places, (larger(as<Ints>(w), from) - from) >> shift);
    Half halves[2];
    __builtin_memcpy(halves, &w, sizeof halves);
    store(units, as<Longs>(widen(halves[0]) + WeightSum::kRound));
    store(units + kHalf, as<Longs>(widen(halves[1]) + WeightSum::kRound));
    MORACLE_VECTOR_UNROLL
    for (int lane = 0; lane < kLanes; ++lane)
      sums[places[lane]] += units[lane] - WeightSum::kRoundBits;
  }
}

/// One bit for each lane, from its highest bit.
MORACLE_VECTOR_INLINE unsigned lane_bits(Ints v) {
#if defined(MORACLE_VECTOR_AVX512)
  return _mm512_movepi32_mask(as<__m512i>(v));
#elif defined(MORACLE_VECTOR_AVX2)
  return static_cast<unsigned>(_mm256_movemask_ps(as<__m256>(v)));
#elif defined(__SSE2__)
  return static_cast<unsigned>(_mm_movemask_ps(as<__m128>(v)));
#else
  unsigned bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= (v[lane] < 0 ? 1u : 0u) << lane;
  return bits;
#endif
}

int64_t find_weights(const float* weights, int64_t count, float least, float below,
                     uint32_t* bits) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec w = count - i < kLanes ? load_first(weights + i, count - i) : load(weights + i);
    for (unsigned left = lane_bits((w >= least) & (w < below)); left != 0; left &= left - 1)
      __builtin_memcpy(bits + found++, weights + i + __builtin_ctz(left), sizeof *bits);
  }
  return found;
}

constexpr DrawOps draw_table(const char* isa) {
  return {isa, weights_of, keep_weights, add_by_bits, find_weights};
}

}  // namespace
}  // namespace moracle::cpu
