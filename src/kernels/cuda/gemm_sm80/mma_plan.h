// Plans backend cuda-sm80. Plain C++, so that builds without CUDA can plan it, too.
#pragma once

#include <array>

#include "oracle/kernel_plan.h"

namespace moracle::cuda {

/// Rows of a tile, and the mean rows per expert up to which no wider tile is faster.
struct MmaTileRows {
  int rows;
  double most_rows;
};
/// Tiles from few rows to many.
using MmaTiles = std::array<MmaTileRows, 4>;
/// Tiles of operands whose sums are scaled group by group, and of the other operands. Measured on
/// an H200 (bench/lab).
inline constexpr MmaTiles kTilesInGroups = {{{8, 6}, {16, 12}, {32, 90}, {64, 0}}};
inline constexpr MmaTiles kTilesOfRows = {{{8, 6}, {16, 12}, {32, 26}, {128, 0}}};

/// True if weights of this shape in this scheme are scaled group by group.
bool mma_in_groups(const MatrixShape& shape, const Scheme& scheme);

/// Returns the tile that suits `rows` rows spread over `experts` experts. Only the device knows the
/// actual number of rows, so the choice uses the largest possible number.
int mma_choice(const MmaTiles& tiles, int64_t rows, int64_t experts);

/// What mma.sync multiplies.
CudaProducts mma_products(const Scheme& scheme);
/// The kernel with tiles of `tile_rows` rows. `shape` is that of the weights as they lie in memory.
CudaForm mma_form(const MatrixShape& shape, const Scheme& scheme, int tile_rows);

/// Plans these kernels for any number of tokens.
KernelPlan plan_mma(const KernelRequest& request, const Machine& machine);

/// True if gates and the outputs that they multiply fill separate panels, and the function needs
/// only an exponential.
bool mma_activates(const MatrixShape& shape, const ActivationSpec& activation);

}  // namespace moracle::cuda
