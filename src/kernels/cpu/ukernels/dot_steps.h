// Rows of int8 times panels whose scales are integers (StepDotArgs), written once and included by
// the files built for one instruction set. A super-block is the kFactorCols columns that share the
// factors of their scales. Sums of products times steps are exact over a super-block.
//
// Everything is in an anonymous namespace, for the reason given in simd/vector.h.
#pragma once

#include "kernels/cpu/simd/vector.h"
#include "kernels/cpu/ukernels/args.h"
#include "quant/code_set.h"

namespace moracle::cpu {
namespace {

// A row block is one vector, or two halves.
constexpr int kHalves = kPanelRows / kLanes;
constexpr int kHalfBytes = kRowBlockBytes / kHalves;

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kByFours = true;
MORACLE_VECTOR_INLINE Ints add_products(Ints sum, Bits codes, Bits x) {
#if defined(__AVX512VNNI__)
  return as<Ints>(_mm512_dpbusd_epi32(as<__m512i>(sum), as<__m512i>(codes), as<__m512i>(x)));
#else
  return as<Ints>(_mm256_dpbusd_avx_epi32(as<__m256i>(sum), as<__m256i>(codes), as<__m256i>(x)));
#endif
}
#else
constexpr bool kByFours = false;
#endif

/// The codes of row blocks of one kind. Products take unsigned bytes: the code plus kOffset.
template <CodeSet set>
struct StoredCodes {
  static constexpr int kHigh = set == CodeSet::kAny ? 0 : code_bits(set) - 4;  // beside four bits
  static constexpr int kCols = kHigh == 1 ? 32 : 16;                           // of a unit
  static constexpr int kLowBlocks = kCols / 8, kBlocks = kLowBlocks + (kHigh > 0 ? 1 : 0);
  static constexpr int kOffset = set == CodeSet::kAny       ? 8
                                 : set == CodeSet::kSigned6 ? 32
                                 : set != CodeSet::kIq4     ? 0
                                 : kByFours                 ? 128
                                                            : 0;
  /// Two products of bytes fit into 16 bits, and so do sums of kPairs of them with AVX2: 2 · 127
  /// times 15, 31 or 63 is at most 32,767 / kPairs. Codes of kIq4 stay signed there, and their
  /// signs go to the activations: 2 · 127 · 127.
  static constexpr bool kSigned = set == CodeSet::kIq4 && !kByFours;
  static constexpr int kPairs = set == CodeSet::kIq4 ? 1 : kHigh == 2 ? 2 : 4;

  /// Columns 4c to 4c + 3 of a unit.
  MORACLE_VECTOR_INLINE static Bits at(const std::byte* unit, int c) {
    constexpr uint32_t kBytes = 0x01010101u;
    const Bits both = load_as<Bits>(unit + c / 2 * kRowBlockBytes);
    Bits code = (c % 2 == 0 ? both : both >> 4) & splat_bits(15 * kBytes);
    if constexpr (set == CodeSet::kAny) code ^= splat_bits(8 * kBytes);
    if constexpr (set == CodeSet::kIq4) code = value_of(code);
    if constexpr (kHigh > 0) {
      const Bits high = load_as<Bits>(unit + kLowBlocks * kRowBlockBytes);
      const int shift = c * kHigh - 4;
      code |= (shift < 0 ? high << (shift < 0 ? -shift : 0) : high >> (shift < 0 ? 0 : shift)) &
              splat_bits((16 * ((1u << kHigh) - 1)) * kBytes);
    }
    return code;
  }

 private:
  MORACLE_VECTOR_INLINE static Bits value_of(Bits numbers) {
    const auto table = load_as<__m128i>(kIq4Values);
#if defined(MORACLE_VECTOR_AVX512)
    const __m512i values = _mm512_broadcast_i32x4(table);
    const auto value = as<Bits>(_mm512_shuffle_epi8(values, as<__m512i>(numbers)));
#else
    const __m256i values = _mm256_broadcastsi128_si256(table);
    const auto value = as<Bits>(_mm256_shuffle_epi8(values, as<__m256i>(numbers)));
#endif
    return kByFours ? value ^ splat_bits(0x80808080u) : value;
  }
};

MORACLE_VECTOR_INLINE Bits four_bytes(const std::byte* p) {
  return splat_bits(load_as<uint32_t>(p));
}
MORACLE_VECTOR_INLINE Ints widen_bytes(const int8_t* p) {
#if defined(MORACLE_VECTOR_AVX512)
  return as<Ints>(_mm512_cvtepi8_epi32(load_as<__m128i>(p)));
#else
  return as<Ints>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#endif
}
MORACLE_VECTOR_INLINE Vec widen_factors(const uint16_t* p) {
#if defined(MORACLE_VECTOR_AVX512)
  return as<Vec>(_mm512_cvtph_ps(load_as<__m256i>(p)));
#else
  return as<Vec>(_mm256_cvtph_ps(load_as<__m128i>(p)));
#endif
}
MORACLE_VECTOR_INLINE Vec to_floats(Ints v) {
  return __builtin_convertvector(v, Vec);
}

#if !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
/// Each step twice, as words.
MORACLE_VECTOR_INLINE __m256i step_words(const int8_t* p) {
  const __m128i steps = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(steps, steps));
}
template <bool kSigned>
MORACLE_VECTOR_INLINE __m256i pair_products(__m256i codes, __m256i x) {
  if constexpr (kSigned)
    return _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
  else
    return _mm256_maddubs_epi16(codes, x);
}
#endif

/// A super-block, its panel, and its first row of several.
struct StepPlace {
  int64_t super_block;
  int panel, row, groups;
};

/// sum[r] += step · Σ code · x over one group.
template <class Codes, int kRows>
MORACLE_VECTOR_INLINE void add_group(const StepDotArgs& b, const std::byte* w, const std::byte* x,
                                     const int32_t* x_sum, const int8_t* step, int offset,
                                     Ints (&sum)[kRows]) {
  const int64_t x_stride = b.x_stride, x_sum_stride = b.x_sum_stride;
  const int units = b.group_cols / Codes::kCols;
  const Ints steps = widen_bytes(step);
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  Ints group[kRows];
  MORACLE_VECTOR_UNROLL
  for (int r = 0; r < kRows; ++r)
    group[r] = as<Ints>(
        splat_bits(offset == 0 ? 0u : static_cast<uint32_t>(-offset * x_sum[r * x_sum_stride])));
  for (int u = 0; u < units; ++u) {
    MORACLE_VECTOR_UNROLL
    for (int c = 0; c < Codes::kCols / 4; ++c) {
      const Bits code = Codes::at(w, c);
      MORACLE_VECTOR_UNROLL
      for (int r = 0; r < kRows; ++r)
        group[r] = add_products(group[r], code, four_bytes(x + r * x_stride + c * 4));
    }
    w += Codes::kBlocks * kRowBlockBytes;
    x += Codes::kCols;
  }
  MORACLE_VECTOR_UNROLL
  for (int r = 0; r < kRows; ++r) sum[r] += group[r] * steps;
#else
  const __m256i words = step_words(step);
  if (offset != 0) {
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r)
      sum[r] +=
          steps * as<Ints>(splat_bits(static_cast<uint32_t>(-offset * x_sum[r * x_sum_stride])));
  }
  for (int u = 0; u < units; ++u) {
    MORACLE_VECTOR_UNROLL
    for (int c = 0; c < Codes::kCols / 4; c += Codes::kPairs) {
      __m256i pairs[kRows];
      MORACLE_VECTOR_UNROLL
      for (int i = 0; i < Codes::kPairs; ++i) {
        const auto code = as<__m256i>(Codes::at(w, c + i));
        MORACLE_VECTOR_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const auto bytes = as<__m256i>(four_bytes(x + r * x_stride + (c + i) * 4));
          const __m256i two = pair_products<Codes::kSigned>(code, bytes);
          pairs[r] = i == 0 ? two : _mm256_add_epi16(pairs[r], two);
        }
      }
      MORACLE_VECTOR_UNROLL
      for (int r = 0; r < kRows; ++r) sum[r] += as<Ints>(_mm256_madd_epi16(pairs[r], words));
    }
    w += Codes::kBlocks * kRowBlockBytes;
    x += Codes::kCols;
  }
#endif
}

/// kRows rows of kLimbRows limbs times half a panel, over one super-block.
template <class Codes, int kTokens, int kLimbRows>
void multiply_half(const StepDotArgs& b, const StepPlace& at, int half) {
  constexpr int kRows = kTokens * kLimbRows;
  const int p = at.panel, offset = Codes::kOffset + b.zero;
  const int64_t first_group = at.super_block * (kFactorCols / b.group_cols);
  const int64_t group_bytes = b.group_cols / Codes::kCols * Codes::kBlocks * kRowBlockBytes;
  const std::byte* w = b.w[p] + first_group * group_bytes + half * kHalfBytes;
  const int64_t x_row = int64_t{at.row} * kLimbRows;
  const std::byte* x = b.x + x_row * b.x_stride + at.super_block * kFactorCols;
  const int32_t* x_sum = b.x_sum + x_row * b.x_sum_stride + first_group;
  const float* least_sum = b.minimum_sum + at.row * b.minimum_sum_stride + first_group;
  const int64_t lane = first_group * kPanelRows + half * kLanes;
  const int8_t* step = b.steps[p].step + lane;
  const int8_t* minimum = b.minimums[p].step == nullptr ? nullptr : b.minimums[p].step + lane;
  const bool prefetches = b.prefetch[p] != nullptr && at.row == 0 && half == 0;
  int64_t line = first_group * group_bytes / kRowBlockBytes;
  Ints sum[kRows] = {};
  Vec least[kTokens] = {};
  for (int g = 0; g < at.groups; ++g) {
    if (prefetches) {
      for (const int64_t past = line + group_bytes / kRowBlockBytes; line < past; ++line) {
        const int64_t jump = line >= b.prefetch_switch ? b.prefetch_jump[p] : 0;
        __builtin_prefetch(b.prefetch[p] + line * kRowBlockBytes + jump, 0, 2);
      }
    }
    add_group<Codes, kRows>(b, w, x, x_sum + g, step, offset, sum);
    if (minimum != nullptr) {
      const Vec m = to_floats(widen_bytes(minimum));
      MORACLE_VECTOR_UNROLL
      for (int t = 0; t < kTokens; ++t)
        least[t] = multiply_add(m, splat(least_sum[t * b.minimum_sum_stride + g]), least[t]);
      minimum += kPanelRows;
    }
    step += kPanelRows;
    w += group_bytes;
    x += b.group_cols;
  }
  const int64_t factor_at = at.super_block * kPanelRows + half * kLanes;
  const Vec factor = widen_factors(b.steps[p].factor + factor_at);
  const Vec least_factor =
      minimum == nullptr ? Vec{} : widen_factors(b.minimums[p].factor + factor_at);
  MORACLE_VECTOR_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    Vec part = to_floats(sum[t * kLimbRows + kLimbRows - 1]);
    if constexpr (kLimbRows > 1) {
      // The smallest limb comes first.
      const float* const scale =
          b.x_scale + (x_row + t * kLimbRows) * b.x_scale_stride + at.super_block;
      part = part * splat(scale[(kLimbRows - 1) * b.x_scale_stride]);
      MORACLE_VECTOR_UNROLL
      for (int l = kLimbRows - 2; l >= 0; --l)
        part = multiply_add(to_floats(sum[t * kLimbRows + l]), splat(scale[l * b.x_scale_stride]),
                            part);
    }
    float* const to = b.sum[p] + (at.row + t) * kPanelRows + half * kLanes;
    Vec total = multiply_add(part, factor, at.super_block == 0 ? Vec{} : load(to));
    if (minimum != nullptr) total = multiply_add(-least[t], least_factor, total);
    store(to, total);
  }
}

template <class Codes, int kTokens, int kLimbRows>
void multiply_block(const StepDotArgs& b, const StepPlace& at) {
  for (int half = 0; half < kHalves; ++half) multiply_half<Codes, kTokens, kLimbRows>(b, at, half);
}

/// Prefetches the steps of the same super-block in the panel that is read next.
MORACLE_VECTOR_INLINE void prefetch_steps(const PanelSteps& steps, int64_t jump,
                                          const StepPlace& at, int64_t per_factor) {
  const auto* const from =
      reinterpret_cast<const std::byte*>(steps.step + at.super_block * per_factor * kPanelRows);
  for (int64_t i = 0; i < at.groups * kPanelRows; i += kRowBlockBytes)
    __builtin_prefetch(from + jump + i, 0, 2);
  __builtin_prefetch(
      reinterpret_cast<const std::byte*>(steps.factor + at.super_block * kPanelRows) + jump, 0, 2);
}

template <CodeSet set>
void multiply_steps(const StepDotArgs& b) {
  using Codes = StoredCodes<set>;
  constexpr void (*kInt8Rows[])(const StepDotArgs&, const StepPlace&) = {
      multiply_block<Codes, 1, 1>, multiply_block<Codes, 2, 1>, multiply_block<Codes, 3, 1>,
      multiply_block<Codes, 4, 1>};
  constexpr void (*kLimbRows[])(const StepDotArgs&, const StepPlace&) = {
      multiply_block<Codes, 1, kLimbs>, multiply_block<Codes, 2, kLimbs>};
  const bool limbs = b.limbs != 1;
  const int most = limbs ? 2 : 4;
  const int per_factor = static_cast<int>(kFactorCols) / b.group_cols;
  for (int64_t s = 0, left = b.groups; left > 0; ++s, left -= per_factor) {
    for (int p = 0; p < b.panels; ++p) {
      StepPlace at{s, p, 0, static_cast<int>(left < per_factor ? left : per_factor)};
      if (b.steps_jump[p] != 0) {
        prefetch_steps(b.steps[p], b.steps_jump[p], at, per_factor);
        if (b.minimums[p].step != nullptr)
          prefetch_steps(b.minimums[p], b.steps_jump[p], at, per_factor);
      }
      for (; at.row < b.rows; at.row += most) {
        const int rows = b.rows - at.row < most ? b.rows - at.row : most;
        (limbs ? kLimbRows : kInt8Rows)[rows - 1](b, at);
      }
    }
  }
}

}  // namespace
}  // namespace moracle::cpu
