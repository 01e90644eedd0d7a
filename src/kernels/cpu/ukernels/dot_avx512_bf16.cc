// AVX-512 with VNNI and BF16.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot.h"

namespace moracle::cpu {
namespace {

struct Bf16Dot : F32Dot {
  using Weights = __m512i;
  MORACLE_VECTOR_INLINE static __m512i weights(const std::byte* p, int) {
    return _mm512_load_si512(p);
  }
  MORACLE_VECTOR_INLINE static Bits activations(const std::byte* p) { return broadcast_bytes(p); }
  template <int>
  MORACLE_VECTOR_INLINE static void add(Vec& sum, Bits x, __m512i w) {
    sum = _mm512_dpbf16_ps(sum, as<__m512bh>(x), as<__m512bh>(w));
  }
};

/// 4-bit codes as bf16, two columns of a row in each dword: 0 and 2, 1 and 3, 4 and 6, 5 and 7. An
/// index is five bits, of which the highest belongs to another code, so tables hold values twice.
template <const uint16_t (&kValues)[32]>
struct NibblesBf16 : Bf16Dot {
  static constexpr int kCalls = 4;
  MORACLE_VECTOR_INLINE static __m512i weights(const std::byte* p, int pair) {
    const auto shift = static_cast<unsigned>(pair % 2 * 8 + pair / 2 * 4);
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(_mm512_load_si512(p), shift),
                                    _mm512_load_si512(kValues));
  }
};

// e4m3 below 2^-6 (m · 2^-9) times 2^-8.
alignas(64) constexpr uint16_t kE4M3Small[32] = {0x0000, 0x3700, 0x3780, 0x37c0,
                                                 0x3800, 0x3820, 0x3840, 0x3860};

/// e4m3 as bf16 times 2^-8: columns 0 and 2 of a row block, then 1 and 3. A shift and one operation
/// unpack normal numbers, because their exponents keep their lowest four bits. Zeros, subnormals
/// and NaN are rare.
struct E4M3Bf16 : Bf16Dot {
  static constexpr int kCalls = 2;
  static constexpr bool kHasRare = true;
  MORACLE_VECTOR_INLINE static __m512i weights(const std::byte* p, int odd) {
    const __m512i codes = _mm512_load_si512(p),
                  top = odd == 0 ? _mm512_slli_epi16(codes, 8) : codes;
    // (top >> 4 & sign, exponent and mantissa) | 112 in the exponent
    return _mm512_ternarylogic_epi32(_mm512_srai_epi16(top, 4),
                                     _mm512_set1_epi16(static_cast<short>(0x87f0)),
                                     _mm512_set1_epi16(0x3800), 0xea);
  }
  MORACLE_VECTOR_INLINE static __m512i rare_weights(const std::byte* p, int odd) {
    const __m512i codes = _mm512_load_si512(p),
                  top = odd == 0 ? _mm512_slli_epi16(codes, 8) : codes;
    const __m512i size = _mm512_and_si512(_mm512_srli_epi16(top, 8), _mm512_set1_epi16(0x7f));
    const __mmask32 small = _mm512_cmplt_epu16_mask(size, _mm512_set1_epi16(8));
    const __mmask32 nan = _mm512_cmpeq_epi16_mask(size, _mm512_set1_epi16(0x7f));
    const __m512i sign = _mm512_and_si512(top, _mm512_set1_epi16(-0x8000));
    const __m512i below =
        _mm512_or_si512(_mm512_permutexvar_epi16(size, _mm512_load_si512(kE4M3Small)), sign);
    const __m512i value = _mm512_mask_mov_epi16(weights(p, odd), small, below);
    return _mm512_mask_mov_epi16(value, nan, _mm512_set1_epi16(0x7fc0));
  }
  MORACLE_VECTOR_INLINE static Vec finish(Vec sum) { return sum * 256; }
};

}  // namespace

void dot_x_bf16_w_i4_r8_avx512bf16(const DotArgs& b) {
  multiply<NibblesBf16<kI4AsBf16>>(b);
}
void dot_x_bf16_w_e2m1_r8_avx512bf16(const DotArgs& b) {
  multiply<NibblesBf16<kE2M1AsBf16>>(b);
}
void dot_x_bf16_w_e4m3_r8_avx512bf16(const DotArgs& b) {
  multiply<E4M3Bf16>(b);
}
void dot_x_bf16_w_bf16_r8_avx512bf16(const DotArgs& b) {
  multiply<Bf16Dot>(b);
}

}  // namespace moracle::cpu

#endif
