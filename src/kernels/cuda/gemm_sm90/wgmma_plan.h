// Plans the kernels of gemm_sm90. Plain C++, so that builds without CUDA can plan them, too.
#pragma once

#include <span>
#include <string>

#include "moracle/oracle.h"

namespace moracle::cuda {

/// Rows of a tile, and the mean rows per expert up to which no wider tile is faster. Measured on an
/// H200 (bench/lab/wgmma.md).
struct WgmmaTileRows {
  int rows;
  double most_rows;
};
inline constexpr WgmmaTileRows kWgmmaTiles[] = {{16, 8}, {32, 20}, {64, 48}, {128, 100}, {192, 0}};
/// Mean rows per expert from which these kernels are faster than those of cuda-sm80.
inline constexpr int64_t kWgmmaLeastRows = 12;

/// The kernels of a matrix: for the first of kWgmmaTiles; 0: none multiplies these types.
int wgmma_tiles(const MatrixShape& shape, const Scheme& scheme);

/// Returns the tile, of the first `tiles`, for `rows` rows spread over `experts` experts.
int wgmma_choice(int tiles, int64_t rows, int64_t experts);

/// Returns the least tokens for which these kernels run; 0: never.
int64_t wgmma_least_tokens(const KernelRequest& request);

/// Name of the kernel with tiles of `tile_rows` rows in plans.
std::string wgmma_kernel_name(const Scheme& scheme, int tile_rows);

}  // namespace moracle::cuda
