// Loops that multiply and add in registers at a CPU's full speed. They are assembly, so that every
// build measures the same instructions and no file needs an instruction set's flags. Only a CPU
// that reports the features may call them.
#pragma once

#include <cstdint>

namespace moracle::cpu {

#if defined(__x86_64__)
/// Each runs `rounds` times kMultiplies independent instructions.
inline constexpr int kMultiplies = 12;
void multiply_f32_avx2(int64_t rounds);          ///< vfmadd231ps, 8 lanes
void multiply_int8_avx2(int64_t rounds);         ///< vpmaddwd of widened codes, 16 products
void multiply_bytes_avx2(int64_t rounds);        ///< vpmaddubsw, 32 products
void multiply_int8_avx_vnni(int64_t rounds);     ///< vpdpbusd in VEX form, 32 products
void multiply_words_avx_vnni(int64_t rounds);    ///< vpdpwssd in VEX form, 16 products
void multiply_f32_avx512(int64_t rounds);        ///< vfmadd231ps, 16 lanes
void multiply_int8_avx512_vnni(int64_t rounds);  ///< vpdpbusd, 64 products
void multiply_bf16_avx512(int64_t rounds);       ///< vdpbf16ps, 32 products
#endif

}  // namespace moracle::cpu
