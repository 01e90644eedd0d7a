// Loops that run one operation at a CPU's full rate: read memory in order, or multiply AMX tiles
// (oracle/rates has the vector loops). They are assembly, so that every build measures the same
// instructions and no file needs an instruction set's flags. Only a CPU that reports the features
// may call them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moracle::cpu {

/// Reads `bytes` from `from` on, in order, in whole multiples of 256 bytes. Prefetches 4 KiB ahead,
/// since the hardware prefetcher stops at the end of each page. `from` is aligned to 64 bytes.
void read_portable(const void* from, size_t bytes);

#if defined(__x86_64__)
void read_avx2(const void* from, size_t bytes);
void read_avx512(const void* from, size_t bytes);

/// Each runs `rounds` times kTileMultiplies products of full tiles: 16 x 64 bytes by 64 bytes x 16.
inline constexpr int kTileMultiplies = 4;
void multiply_int8_amx(int64_t rounds);  ///< tdpbssd, 16 · 16 · 64 products
void multiply_bf16_amx(int64_t rounds);  ///< tdpbf16ps, 16 · 16 · 32 products
/// Requests the tile registers from the kernel, once per process. False: refused, and tiles trap.
bool allow_tiles();
#endif

}  // namespace moracle::cpu
