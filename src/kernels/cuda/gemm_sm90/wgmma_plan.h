// Plans the kernels of gemm_sm90. Plain C++, so that builds without CUDA can plan them, too.
#pragma once

#include "oracle/kernel_plan.h"

namespace moracle::cuda {

/// Rows of a tile, and the mean rows per expert up to which no later tile is faster. Measured
/// (bench/lab/wgmma.md). One tile of 144 rows holds nearly every expert of 100 to 134 rows on
/// average, and two hold most of 190 to 270: there tiles of 192 rows would be a third of padding.
struct WgmmaTileRows {
  int rows;
  double most_rows;
};
inline constexpr WgmmaTileRows kWgmmaTiles[] = {{16, 8},    {32, 20},   {64, 48},   {128, 100},
                                                {144, 134}, {192, 190}, {144, 270}, {192, 0}};
// Least work from which these kernels are faster than the others (H200, bench/lab/wgmma.md, and
// few_tokens.md for the stages). Tiles of the experts with tokens must fill the SMs; unpacking
// int4, or values, needs more tiles. Stages of 128 columns must outweigh prologue and epilogue.
// Two and more tokens of int4, and five of NVFP4, with float activations need less, because
// mma.sync multiplies their octets (decode_steps.md). Small layers count rows per expert.
struct WgmmaLeast {
  double tiles, stages;
};
inline constexpr WgmmaLeast kLeast{80, 2500}, kLeastSlow{120, 2500}, kLeastOctets{50, 1300};
inline constexpr int64_t kLeastRows = 12;

/// Returns how many of kWgmmaTiles, from the first on, have a kernel for this matrix; 0: none
/// multiplies these types.
int wgmma_tiles(const MatrixShape& shape, const Scheme& scheme);

/// Returns the tile, of the first `tiles`, for `rows` rows spread over `experts` experts.
int wgmma_choice(int tiles, int64_t rows, int64_t experts);

/// Returns the tile for the `rows` rows of a linear layer: the second to the fourth.
int wgmma_dense_choice(int64_t rows);

/// Returns the least tokens of the layer for which these kernels run; 0: never.
int64_t wgmma_least_tokens(const KernelRequest& request);

/// How wgmma reads the quantized activations of a matrix: as codes, as values of the codes in bf16,
/// or as codes in bf16, with scales of tokens. bf16 holds both exactly.
enum class WgmmaInput { kCodes, kValues, kWideCodes };
WgmmaInput wgmma_input(const MatrixShape& shape, const Scheme& scheme);

/// The kernel with tiles of `tile_rows` rows. `scheme`: of the products.
CudaForm wgmma_form(const MatrixShape& shape, const Scheme& scheme, int tile_rows);

}  // namespace moracle::cuda
