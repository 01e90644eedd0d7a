// Plans the kernels of gemm_sm90. Plain C++, so that builds without CUDA can plan them, too.
#pragma once

#include "oracle/kernel_plan.h"

namespace moracle::cuda {

/// The tiles of a matrix's experts, of which the mean rows of an expert choose one (wgmma_plan.cc).
/// One tile of 144 rows holds nearly every expert of about 128 rows, and two hold most of about
/// 256. kMost has 192 rows, or where weights are unpacked or sums promoted 128.
enum class WgmmaTiles { k16, k32, k64, k128, k144, kTwo144, kMost };

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

/// True if a kernel multiplies these types.
bool wgmma_serves(const MatrixShape& shape, const Scheme& scheme);

/// Tiles, and the most rows for which they are chosen.
struct WgmmaChoice {
  WgmmaTiles tiles;
  int64_t most_rows;
};
/// Returns the tiles for `rows` rows spread over `experts` experts. `scheme`: of the products.
WgmmaChoice wgmma_choice(const MatrixShape& shape, const Scheme& scheme, int64_t rows,
                         int64_t experts);

/// Returns the tiles for the `rows` rows of a linear layer: k32, k64 or k128.
WgmmaChoice wgmma_dense_choice(int64_t rows);

/// Returns the least tokens of the layer for which these kernels run; 0: never.
int64_t wgmma_least_tokens(const KernelRequest& request);

/// How wgmma reads the quantized activations of a matrix: as codes, as values of the codes in bf16,
/// or as codes in bf16, with scales of tokens. bf16 holds both exactly.
enum class WgmmaInput { kCodes, kValues, kWideCodes };
WgmmaInput wgmma_input(const MatrixShape& shape, const Scheme& scheme);

/// The kernel with these tiles. `scheme`: of the products.
CudaForm wgmma_form(const MatrixShape& shape, const Scheme& scheme, WgmmaTiles tiles);

}  // namespace moracle::cuda
