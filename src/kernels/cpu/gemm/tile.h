// The innermost loops of the cpu backend: a few rows of activations against one panel of weights.
// One source (tile_loops.h) is compiled once per instruction set; tile_kernels() picks at run time.
#pragma once

#include <cstdint>

namespace moracle::cpu {

/// Columns (output rows n of the weight matrix) in one panel of layout kPanel16.
inline constexpr int kPanel = 16;
/// Maximum activation rows per call: 4 rows x 16 columns of f32 fill 8 of AVX2's 16 registers.
inline constexpr int kMaxRows = 4;

/// y[r][c] = Σ_k x[r][k] · w[c][k] for r < rows ≤ kMaxRows, c < kPanel. Products and sums in f32.
/// `panel` holds element (c, k) at k·kPanel + c. `y` has kMaxRows·kPanel floats, written for r <
/// rows.
template <class Weight>
using FloatTile = void (*)(const float* const* x, int rows, const Weight* panel, int64_t k,
                           float* y);

/// Signed 4-bit codes in groups of `group` (even) along k, each group with one scale per column:
/// y[r][c] = Σ_g scale[g][c] · Σ_{k in g} x[r][k] · q[c][k]; f32 throughout.
/// Codes (c, k) and (c, k+1), k even, share byte (k/2)·kPanel + c: low nibble k, two's complement.
/// The last group may be shorter. `scales` holds (g, c) at g·kPanel + c.
using Int4Tile = void (*)(const float* const* x, int rows, const uint8_t* panel,
                          const float* scales, int64_t k, int64_t group, float* y);

/// The same for signed 8-bit codes: element (c, k) at (k/2)·2·kPanel + 2c + k%2.
using Int8Tile = void (*)(const float* const* x, int rows, const int8_t* panel, const float* scales,
                          int64_t k, int64_t group, float* y);

/// Signed 8-bit codes on both sides, exact in i32 for k < 131,072 (at k = 131,072 a sum can be
/// 2^31): y[r][c] = x_scale[r] · scale[c] · Σ_k x[r][k] · q[c][k]; layout as Int8Tile, k even (pad
/// with 0).
using Int8Int8Tile = void (*)(const int8_t* const* x, const float* x_scale, int rows,
                              const int8_t* panel, const float* scales, int64_t k, float* y);

struct TileKernels {
  const char* isa;  ///< "portable", "avx2"
  FloatTile<float> f32;
  FloatTile<uint16_t> bf16;
  FloatTile<uint16_t> f16;
  Int4Tile int4;
  Int8Tile int8;
  Int8Int8Tile int8_int8;
};

extern const TileKernels kPortableTiles;
#if defined(__x86_64__)
/// On CPUs with AVX2, cpu-avx2 serves most layers before these forms. They stay for groups that are
/// no multiple of 32 columns: int4-w4a16-g16 with 64 tokens takes 2.6 times as long without them
/// (two threads of a Zen 3 EPYC, 16 experts of 2048 x 768, top-4).
/// They need AVX2, FMA and F16C.
extern const TileKernels kAvx2Tiles;
#endif

}  // namespace moracle::cpu
