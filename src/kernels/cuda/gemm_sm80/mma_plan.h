// What cuda-sm80 would do for a matrix: plain C++, so that builds without CUDA plan it, too.
#pragma once

#include <array>
#include <string>

#include "moracle/oracle.h"

namespace moracle::cuda {

/// The rows of a tile, and the rows of an expert in the mean up to which no wider tile is faster.
struct MmaTileRows {
  int rows;
  double most_rows;
};
/// From few rows of a tile to many.
using MmaTiles = std::array<MmaTileRows, 4>;
/// Of operands whose sums are scaled group by group, and of the others. Measured on an H200
/// (bench/lab).
inline constexpr MmaTiles kTilesInGroups = {{{8, 6}, {16, 12}, {32, 90}, {64, 0}}};
inline constexpr MmaTiles kTilesOfRows = {{{8, 6}, {16, 12}, {32, 26}, {128, 0}}};

/// Whether weights of this shape in this scheme are scaled group by group.
bool mma_in_groups(const MatrixShape& shape, const Scheme& scheme);

/// The tile that suits so many rows, spread over so many experts: how many are there is known to
/// the device alone, so this goes by what there may be.
int mma_choice(const MmaTiles& tiles, int64_t rows, int64_t experts);

/// What the kernel with tiles of so many rows is called in plans.
std::string mma_kernel_name(const Scheme& scheme, int tile_rows);

/// Whether gates and what they multiply fill panels of their own, and are functions of an
/// exponential alone.
bool mma_activates(const MatrixShape& shape, const ActivationSpec& activation);

}  // namespace moracle::cuda
