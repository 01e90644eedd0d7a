// Loops that do one thing as fast as a CPU can: read memory in order, or multiply and add in
// registers. Written in assembly, so that every build measures the same instructions and no file
// needs an instruction set's flags; only a CPU that reports the features may call them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moracle::cpu {

/// Reads `bytes` from `from` on, in order, in whole multiples of 256 bytes, asking for memory 4 KiB
/// ahead: the hardware's own prefetch stops at the end of each page. Aligned to 64 bytes.
void read_portable(const void* from, size_t bytes);

#if defined(__x86_64__)
void read_avx2(const void* from, size_t bytes);
void read_avx512(const void* from, size_t bytes);

/// Each runs `rounds` times kMultiplies instructions that do not wait for each other.
inline constexpr int kMultiplies = 12;
void multiply_f32_avx2(int64_t rounds);          ///< vfmadd231ps, 8 lanes
void multiply_int8_avx2(int64_t rounds);         ///< vpmaddwd of widened codes, 16 products
void multiply_int8_avx_vnni(int64_t rounds);     ///< vpdpbusd in VEX form, 32 products
void multiply_f32_avx512(int64_t rounds);        ///< vfmadd231ps, 16 lanes
void multiply_int8_avx512_vnni(int64_t rounds);  ///< vpdpbusd, 64 products
void multiply_bf16_avx512(int64_t rounds);       ///< vdpbf16ps, 32 products

/// Each runs `rounds` times kTileMultiplies products of full tiles: 16 x 64 bytes by 64 bytes x 16.
inline constexpr int kTileMultiplies = 4;
void multiply_int8_amx(int64_t rounds);  ///< tdpbssd, 16 · 16 · 64 products
void multiply_bf16_amx(int64_t rounds);  ///< tdpbf16ps, 16 · 16 · 32 products
/// Asks the kernel for the tiles' registers, once per process. False: it refuses, and tiles trap.
bool allow_tiles();
#endif

}  // namespace moracle::cpu
