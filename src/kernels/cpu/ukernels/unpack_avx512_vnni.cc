// Unpacks codes to row blocks of int8, bf16 and f32, 64 bytes at a time.
//
// bf16 has 8 significant bits and holds every code of up to 8 bits exactly (integers up to 255 in
// size). It also holds e4m3 or e2m1 times a power of two exactly, if the result is a normal number.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/float_limbs.h"
#include "kernels/cpu/ukernels/unpack.h"

namespace moracle::cpu {
namespace {

MORACLE_VECTOR_INLINE void store_row_block(std::byte* to, int64_t row_block, __m512i value) {
  _mm512_store_si512(to + row_block * kRowBlockBytes, value);
}

// e4m3 below 2^-6: m · 2^-9.
alignas(64) constexpr uint16_t kE4M3Small[32] = {0x0000, 0x3b00, 0x3b80, 0x3bc0,
                                                 0x3c00, 0x3c20, 0x3c40, 0x3c60};

/// bf16 times 2^e. Zeros and NaN stay; results below the normal numbers become 0.
MORACLE_VECTOR_INLINE __m512i times_power(__m512i bf16, __m512i e) {
  const __m512i before = _mm512_and_si512(_mm512_srli_epi16(bf16, 7), _mm512_set1_epi16(255));
  const __mmask32 nan = _mm512_cmpeq_epi16_mask(before, _mm512_set1_epi16(255));
  const __mmask32 stays =
      _mm512_test_epi16_mask(bf16, _mm512_set1_epi16(0x7fff)) &
      _mm512_cmpgt_epi16_mask(_mm512_add_epi16(before, e), _mm512_setzero_si512());
  const __m512i moved = _mm512_maskz_add_epi16(stays, bf16, _mm512_slli_epi16(e, 7));
  return _mm512_mask_mov_epi16(moved, nan, bf16);
}
/// times_power for finite values whose results are normal numbers or 0.
MORACLE_VECTOR_INLINE __m512i times_small_power(__m512i bf16, __m512i shifted_e) {
  const __mmask32 not_zero = _mm512_test_epi16_mask(bf16, _mm512_set1_epi16(0x7fff));
  return _mm512_mask_add_epi16(bf16, not_zero, bf16, shifted_e);
}

/// The exponents of a call, for all its row blocks: e - 127 in both words of a row's dword.
MORACLE_VECTOR_INLINE __m512i exponents(const UnpackBlocksArgs& c) {
  const __m512i e =
      c.exponent_lanes == 1
          ? _mm512_set1_epi32(c.exponent[0])
          : _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(c.exponent)));
  const __m512i d = _mm512_sub_epi16(e, _mm512_set1_epi32(127));
  return _mm512_or_si512(_mm512_slli_epi32(d, 16), _mm512_and_si512(d, _mm512_set1_epi32(0xffff)));
}

/// Calls body for each row block with its index, its codes and the destination. The local copies
/// stay in registers; the compiler cannot prove that stores leave memory unchanged.
template <class Body>
MORACLE_VECTOR_INLINE void each_row_block(const UnpackBlocksArgs& c, const Body& body) {
  const std::byte* const from = c.codes;
  std::byte* const to = c.to;
  for (int64_t i = 0, row_blocks = c.blocks; i < row_blocks; ++i) {
    const __m512i row_block = _mm512_load_si512(from + i * kRowBlockBytes);
    body(i, row_block, to);
  }
}

/// Calls body for one group after another; each code row block unpacks to kBlocks row blocks.
template <int kBlocks, class Body>
MORACLE_VECTOR_INLINE void each_group(const UnpackBlocksArgs& c, const Body& body) {
  const int64_t step = c.group_blocks == 0 ? c.blocks : c.group_blocks;
  UnpackBlocksArgs group = c;
  for (int64_t first = 0; first < c.blocks; first += step) {
    group.blocks = c.blocks - first < step ? c.blocks - first : step;
    body(group);
    group.codes += step * kRowBlockBytes;
    group.to += step * kBlocks * kRowBlockBytes;
    if (c.zero != nullptr) group.zero += kPanelRows;
    if (c.exponent != nullptr) group.exponent += c.exponent_lanes;
  }
}

// ---- 4 bits ----

enum class Power : uint8_t { kNone, kSmall, kAny };

template <Power kPower>
MORACLE_VECTOR_INLINE void nibbles_to_bf16(const UnpackBlocksArgs& c, __m512i values,
                                           __m512i e = _mm512_setzero_si512()) {
  if constexpr (kPower == Power::kSmall) e = _mm512_slli_epi16(e, 7);
  each_row_block(c, [&](int64_t i, __m512i codes, std::byte* to) {
    // Words hold columns 0, 4, 1 and 5 of each eight, or 2, 6, 3 and 7, from the lowest bits up.
    for (unsigned pair = 0; pair < 4; ++pair) {
      const unsigned shift = pair % 2 * 8 + pair / 2 * 4;
      const __m512i index = shift == 0 ? codes : _mm512_srli_epi16(codes, shift);
      __m512i value = _mm512_permutexvar_epi16(index, values);
      if constexpr (kPower == Power::kSmall) value = times_small_power(value, e);
      if constexpr (kPower == Power::kAny) value = times_power(value, e);
      store_row_block(to, 4 * i + pair, value);
    }
  });
}

/// Columns `first` and first + 2, less zero points: bf16 holds them exactly.
template <class Code>
MORACLE_VECTOR_INLINE __m512i bf16_pair(__m512i codes, int first, Vec zero) {
  const auto low = as<__m512i>(Code::value(as<Bits>(codes), first, zero)),
             high = as<__m512i>(Code::value(as<Bits>(codes), first + 2, zero));
  return _mm512_mask_mov_epi16(high, 0x55555555u, _mm512_srli_epi32(low, 16));
}

// With zero points, values are integers of up to 5 bits.
MORACLE_VECTOR_INLINE void integers_to_bf16(const UnpackBlocksArgs& c) {
  const Vec zero = to_float(widen_bytes(c.zero));
  each_row_block(c, [&](int64_t i, __m512i codes, std::byte* to) {
    for (int pair = 0; pair < 4; ++pair)
      store_row_block(to, 4 * i + pair,
                      bf16_pair<IntCode<4>>(codes, pair / 2 * 4 + pair % 2, zero));
  });
}

// ---- 8 bits ----

MORACLE_VECTOR_INLINE void bytes_to_bf16(const UnpackBlocksArgs& c) {
  const Vec zero = c.zero == nullptr ? Vec{} : to_float(widen_bytes(c.zero));
  each_row_block(c, [&](int64_t i, __m512i codes, std::byte* to) {
    for (int pair = 0; pair < 2; ++pair)
      store_row_block(to, 2 * i + pair, bf16_pair<IntCode<8>>(codes, pair, zero));
  });
}

/// Codes in the low bytes of words. The exponent's bias differs by 120; NaN stays NaN.
MORACLE_VECTOR_INLINE __m512i e4m3_as_bf16(__m512i code) {
  const __m512i size = _mm512_and_si512(code, _mm512_set1_epi16(0x7f));
  __m512i value = _mm512_add_epi16(_mm512_slli_epi16(size, 4), _mm512_set1_epi16(0x3c00));
  const __mmask32 small = _mm512_cmplt_epu16_mask(size, _mm512_set1_epi16(8));
  value = _mm512_mask_permutexvar_epi16(value, small, size, _mm512_load_si512(kE4M3Small));
  const __mmask32 nan = _mm512_cmpeq_epu16_mask(size, _mm512_set1_epi16(0x7f));
  value = _mm512_mask_mov_epi16(value, nan, _mm512_set1_epi16(0x7fc0));
  // value | (code & 0x80) << 8
  return _mm512_ternarylogic_epi32(value, _mm512_slli_epi16(code, 8), _mm512_set1_epi16(-0x8000),
                                   0xf8);
}

// Sign, exponent and mantissa in the upper bytes of words, as bf16: only for normal numbers.
MORACLE_VECTOR_INLINE __m512i normal_e4m3_as_bf16(__m512i top, __m512i bias) {
  return _mm512_add_epi16(
      _mm512_and_si512(_mm512_srai_epi16(top, 4), _mm512_set1_epi16(static_cast<short>(0x87f0))),
      bias);
}

template <bool kScaled>
MORACLE_VECTOR_INLINE void e4m3_row_blocks(const UnpackBlocksArgs& c) {
  const __m512i e = kScaled ? exponents(c) : _mm512_setzero_si512();
  const __m512i bias = _mm512_add_epi16(_mm512_slli_epi16(e, 7), _mm512_set1_epi16(120 << 7));
  // 2^-6 to 448 times 2^-110 to 2^110.
  const bool small =
      _mm512_cmple_epi16_mask(_mm512_abs_epi16(e), _mm512_set1_epi16(110)) == ~__mmask32{0};
  each_row_block(c, [&](int64_t i, __m512i codes, std::byte* to) {
    const __m512i size = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
    const __mmask64 normal =
        _mm512_cmplt_epu8_mask(_mm512_sub_epi8(size, _mm512_set1_epi8(8)), _mm512_set1_epi8(0x77));
    if (small && normal == ~__mmask64{0}) [[likely]] {
      store_row_block(to, 2 * i, normal_e4m3_as_bf16(_mm512_slli_epi16(codes, 8), bias));
      store_row_block(to, 2 * i + 1, normal_e4m3_as_bf16(codes, bias));
      return;
    }
    // Zeros, subnormals and NaN are rare.
    const __m512i low = e4m3_as_bf16(_mm512_and_si512(codes, _mm512_set1_epi16(255)));
    const __m512i high = e4m3_as_bf16(_mm512_srli_epi16(codes, 8));
    store_row_block(to, 2 * i, kScaled ? times_power(low, e) : low);
    store_row_block(to, 2 * i + 1, kScaled ? times_power(high, e) : high);
  });
}
// ---- rows ----

// To nearest, ties to even; NaN keeps its sign and becomes quiet.
MORACLE_VECTOR_INLINE __m256i round_to_bf16(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}

// Order of eight columns in the destination, for a register of 16 or of 32.
alignas(64) constexpr int32_t kUnpacked16[16] = {0, 2,  1, 3,  4,  6,  5,  7,
                                                 8, 10, 9, 11, 12, 14, 13, 15};

MORACLE_VECTOR_INLINE __mmask16 first16(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << count) - 1);
}
/// Stored columns of a row: in unpacked order, rounded up to a multiple of eight.
MORACLE_VECTOR_INLINE int64_t stored_columns(int64_t count, ColumnOrder order) {
  return order == ColumnOrder::kPlain ? count : (count + 7) / 8 * 8;
}
MORACLE_VECTOR_INLINE __m512i ordered(__m512i columns, ColumnOrder order) {
  return order == ColumnOrder::kPlain
             ? columns
             : _mm512_permutexvar_epi32(_mm512_load_si512(kUnpacked16), columns);
}
/// 16 values that bf16 holds exactly.
MORACLE_VECTOR_INLINE void store_exact(__m512i f32, ColumnOrder order, int64_t left,
                                       std::byte* to) {
  const __m256i bf16 = _mm512_cvtepi32_epi16(_mm512_srli_epi32(ordered(f32, order), 16));
  _mm256_mask_storeu_epi16(to, first16(stored_columns(left, order)), bf16);
}

MORACLE_VECTOR_INLINE __m512i e4m3_values(const uint8_t* from, int64_t left) {
  const __m512i codes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first16(left), from));
  return _mm512_slli_epi32(e4m3_as_bf16(codes), 16);
}
MORACLE_VECTOR_INLINE __m512i int8_values(const int8_t* from, int64_t left) {
  const __m512i codes = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first16(left), from));
  return _mm512_castps_si512(_mm512_cvtepi32_ps(codes));
}

}  // namespace

void pack_f32_to_bf16_avx512vnni(const PackArgs& a) {
  const auto* const from = static_cast<const float*>(a.from);
  for (int64_t i = 0; i < a.count; i += 16) {
    const __mmask16 stored = first16(stored_columns(a.count - i, a.order));
    const __m512i row = _mm512_castps_si512(_mm512_maskz_loadu_ps(first16(a.count - i), from + i));
    const __m512 value = _mm512_castsi512_ps(ordered(row, a.order));
    const __m256i first = round_to_bf16(value);
    _mm256_mask_storeu_epi16(a.to + 2 * i, stored, first);
    if (a.low == nullptr) continue;
    const __m512 rounded = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(first), 16));
    _mm256_mask_storeu_epi16(a.low + 2 * i, stored, round_to_bf16(_mm512_sub_ps(value, rounded)));
  }
}

void pack_e4m3_to_bf16_avx512vnni(const PackArgs& a) {
  const auto* const from = static_cast<const uint8_t*>(a.from);
  for (int64_t i = 0; i < a.count; i += 16)
    store_exact(e4m3_values(from + i, a.count - i), a.order, a.count - i, a.to + 2 * i);
}
void pack_i8_to_bf16_avx512vnni(const PackArgs& a) {
  const auto* const from = static_cast<const int8_t*>(a.from);
  for (int64_t i = 0; i < a.count; i += 16)
    store_exact(int8_values(from + i, a.count - i), a.order, a.count - i, a.to + 2 * i);
}
void pack_f32_to_i8_avx512vnni(const PackArgs& a) {
  f32_to_limbs(a);
}

void unpack_i4_to_i8_avx512vnni(const UnpackBlocksArgs& c) {
  unpack_to_int8<i4_bytes>(c);
}
void unpack_e2m1_to_i8_avx512vnni(const UnpackBlocksArgs& c) {
  unpack_to_int8<e2m1_bytes>(c);
}
void unpack_i4_to_bf16_avx512vnni(const UnpackBlocksArgs& c) {
  if (c.zero == nullptr) return nibbles_to_bf16<Power::kNone>(c, _mm512_load_si512(kI4AsBf16));
  each_group<4>(c, [](const UnpackBlocksArgs& group) { integers_to_bf16(group); });
}
void unpack_e2m1_to_bf16_avx512vnni(const UnpackBlocksArgs& c) {
  const __m512i values = _mm512_load_si512(kE2M1AsBf16);
  if (c.exponent == nullptr) return nibbles_to_bf16<Power::kNone>(c, values);
  each_group<4>(c, [&](const UnpackBlocksArgs& group) {
    const __m512i e = exponents(group);
    // 0.5 to 6 times 2^-125 to 2^125.
    if (_mm512_cmple_epi16_mask(_mm512_abs_epi16(e), _mm512_set1_epi16(125)) == ~__mmask32{0})
      nibbles_to_bf16<Power::kSmall>(group, values, e);
    else
      nibbles_to_bf16<Power::kAny>(group, values, e);
  });
}
void unpack_i8_to_bf16_avx512vnni(const UnpackBlocksArgs& c) {
  each_group<2>(c, [](const UnpackBlocksArgs& group) { bytes_to_bf16(group); });
}
void unpack_e4m3_to_bf16_avx512vnni(const UnpackBlocksArgs& c) {
  if (c.exponent == nullptr) return e4m3_row_blocks<false>(c);
  each_group<2>(c, [](const UnpackBlocksArgs& group) { e4m3_row_blocks<true>(group); });
}
void unpack_i4_to_f32_avx512vnni(const UnpackBlocksArgs& c) {
  unpack_to_f32<IntCode<4>>(c);
}
void unpack_i8_to_f32_avx512vnni(const UnpackBlocksArgs& c) {
  unpack_to_f32<IntCode<8>>(c);
}
void unpack_e4m3_to_f32_avx512vnni(const UnpackBlocksArgs& c) {
  unpack_to_f32<E4M3Code>(c);
}
void unpack_e2m1_to_f32_avx512vnni(const UnpackBlocksArgs& c) {
  unpack_to_f32<E2M1Code>(c);
}

}  // namespace moracle::cpu

#endif
