// AVX-512 with VNNI and BF16.

#if defined(__x86_64__)

#include "kernels/cpu/decode/nibble_tables.h"
#include "kernels/cpu/gemm/lines_avx512.h"

namespace moracle::cpu {
namespace {

/// 4-bit codes as bf16, two columns of a row in each dword: 0 and 2, 1 and 3, 4 and 6, 5 and 7. An
/// index is five bits, of which the highest belongs to another code, so tables hold values twice.
template <const uint16_t (&kValues)[32]>
struct NibblesBf16 : Bf16Dot {
  static constexpr int kCalls = 4;
  MORACLE_LINES_INLINE static __m512i weights(const std::byte* p, int pair) {
    const auto shift = static_cast<unsigned>(pair % 2 * 8 + pair / 2 * 4);
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(load_line(p), shift),
                                    _mm512_load_si512(kValues));
  }
};

}  // namespace

const LineKernels kAvx512Bf16Lines = {.instructions = {"avx512_vnni", "avx512_bf16", "avx512"},
                                      .decoders = &kAvx512Decoders,
                                      .rows = &kAvx512Rows,
                                      .codes = &kAvx512Codes,
                                      .row_block = 8,
                                      .lines_ahead = 64,
                                      .codes_for_all_rows = true,
                                      .floats_in_parts = true,
                                      .int8 = multiply<Int8Dot>,
                                      .bf16 = multiply<Bf16Dot>,
                                      .f32 = multiply<F32Dot>,
                                      .bf16_by_i4 = multiply<NibblesBf16<kI4AsBf16>>,
                                      .bf16_by_e2m1 = multiply<NibblesBf16<kE2M1AsBf16>>,
                                      .finish = finish_rows};

}  // namespace moracle::cpu

#endif
