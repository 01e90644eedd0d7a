// Tiles: their sizes, the layout of a stage in shared memory, and the search for a block's tiles.
#pragma once

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/operands/mma_operands.cuh"
#include "kernels/cuda/tiles/arguments.h"
#include "layout/mma16.h"

namespace moracle::cuda {

/// kWarpsOut times kWarpsRow warps. Each warp computes kPanels panels of 16 outputs for kOctets
/// times 8 rows of activations. A stage is kBlocks k-blocks of 32 columns. Shared memory holds
/// kStages stages.
template <class Operand, int kWarpsOut_, int kWarpsRow, int kPanels_, int kOctets_, int kBlocks_,
          int kStages_, int kBlocksPerSm_>
struct MmaTile {
  static constexpr int kWarpsOut = kWarpsOut_, kPanels = kPanels_, kOctets = kOctets_;
  static constexpr int kBlocks = kBlocks_, kStages = kStages_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kThreads = 32 * kWarpsOut * kWarpsRow;
  static constexpr int kAllPanels = kWarpsOut * kPanels, kOutputs = 16 * kAllPanels;
  // A warp has as many panels of the first half as of the second: gates and the outputs that they
  // multiply.
  static constexpr int kHalf = kAllPanels / 2, kWarpHalf = kPanels / 2;
  static_assert(kPanels % 2 == 0);
  static constexpr int kWarpRows = 8 * kOctets, kRows = kWarpsRow * kWarpRows;
  // Bytes of a k-block: codes of a panel, and columns of one activation row.
  static constexpr int kBlockBytes = mma16::block_bytes(Operand::kCodeBits);
  static constexpr int kXBlockBytes = mma16::kCols * Operand::kXBytes;
  // Scales of a row that a stage may need.
  static constexpr int kGroups = Operand::kGroups ? kBlocks : 1;
  static constexpr int kXGroups = Operand::kXScales == XScales::kGroup ? kBlocks : 1;

  // Layout of a stage: codes [panel][block], x [block][row], scales [panel][group][16], zero points
  // likewise, bias [panel][16], scales of x [group][row].
  static constexpr int kX = kAllPanels * kBlocks * kBlockBytes;
  static constexpr int kScales = kX + kBlocks * kRows * kXBlockBytes;
  static constexpr int kZeros = kScales + (Operand::kScaled ? kAllPanels * kGroups * 64 : 0);
  static constexpr int kBias = kZeros + (Operand::kZeros ? kAllPanels * kGroups * 16 : 0);
  static constexpr int kXScales = kBias + kAllPanels * 64;
  static constexpr int kStageBytes =
      kXScales + (Operand::kXScales == XScales::kNone ? 0 : kXGroups * kRows * 4);
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kStageBytes % 16 == 0);
  static_assert(kSharedBytes <= 98 * 1024);  // every GPU from 8.0 on has 99 KiB
};

/// Place of a tile: its expert, its rows, and its first panel of outputs. A negative expert means
/// that no tile is left.
struct TilePlace {
  int expert, first_row, rows, first_panel;
};

/// Maps panel q of a tile to a panel of the expert.
template <class Tile>
struct TilePanels {
  int first, skipped;  // panels before the first half, and between the halves
  int first_end, end;  // ends of the expert's panels for each half

  __device__ TilePanels(const MmaArgs& a, const TilePlace& place)
      : first(place.first_panel),
        skipped(a.gated ? a.panels / 2 - Tile::kHalf : 0),
        first_end(a.gated ? a.panels / 2 : a.panels),
        end(a.panels) {}
  __device__ int operator[](int q) const { return first + q + (q >= Tile::kHalf ? skipped : 0); }
  __device__ bool there(int q) const { return (*this)[q] < (q >= Tile::kHalf ? end : first_end); }
};

/// Finds tiles by number. Tiles of an expert are consecutive. Within an expert, tiles of the same
/// outputs are consecutive, because they read the same weights. Numbers must not decrease. Whole
/// warps must call; every lane gets the result.
class TileFinder {
 public:
  __device__ TilePlace find(const MmaArgs& a, int64_t number, int tile_rows, int tile_panels) {
    const int panels = a.gated ? a.panels / 2 : a.panels;
    if (a.gated) tile_panels /= 2;
    const int out_tiles = (panels + tile_panels - 1) / tile_panels;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const auto wanted = static_cast<int64_t>(number / out_tiles);  // counted in tiles of rows
    for (; first_ < a.num_experts; first_ += 32 * kEach) {
      int offset[kEach + 1], tiles = 0;
#pragma unroll
      for (int i = 0; i <= kEach; ++i) offset[i] = row_of(a, first_ + lane * kEach + i);
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        tiles += (offset[i + 1] - offset[i] + tile_rows - 1) / tile_rows;
      int up_to = tiles;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(kAllLanes, up_to, step);
        if (lane >= step) up_to += other;
      }
      const int64_t all = before_ + __shfl_sync(kAllLanes, up_to, 31);
      if (wanted >= all) {
        before_ = all;
        continue;
      }
      int64_t start = before_ + up_to - tiles;
      const unsigned mine = __ballot_sync(kAllLanes, wanted >= start && wanted < before_ + up_to);
      int i = 0, count = 0, begin = 0, end = 0;
      bool found = false;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int here = (offset[j + 1] - offset[j] + tile_rows - 1) / tile_rows;
        if (!found && wanted < start + here) {
          found = true;
          i = j, count = here, begin = offset[j], end = offset[j + 1];
        }
        if (!found) start += here;
      }
      const int source = __ffs(static_cast<int>(mine)) - 1;
      const int expert = __shfl_sync(kAllLanes, first_ + lane * kEach + i, source);
      count = __shfl_sync(kAllLanes, count, source);
      begin = __shfl_sync(kAllLanes, begin, source);
      end = __shfl_sync(kAllLanes, end, source);
      start = __shfl_sync(kAllLanes, start, source);
      const int64_t within = number - start * out_tiles;
      const int first_row = begin + static_cast<int>(within % count) * tile_rows;
      return {expert, first_row, min(tile_rows, end - first_row),
              static_cast<int>(within / count) * tile_panels};
    }
    return {-1, 0, 0, 0};
  }

 private:
  static constexpr int kEach = 4;  // experts that a lane checks
  __device__ static int row_of(const MmaArgs& a, int expert) {
    if (a.offsets == nullptr) return expert <= 0 ? 0 : a.num_rows;
    return min(a.offsets[min(expert, a.num_experts)], a.num_rows);
  }
  int first_ = 0;       // first of the experts that a warp checks
  int64_t before_ = 0;  // tiles of rows of all earlier experts
};

}  // namespace moracle::cuda
