// Finds the tiles of a CTA. Only the device knows how many rows each expert has.
#pragma once

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/tiles/arguments.h"

namespace moracle::cuda {

/// A tile of work: its expert, its rows, and its first panel of outputs. A negative expert means
/// that no tile is left.
struct WorkTile {
  int expert, first_row, rows, first_panel;
};

/// Maps panel q of a tile to a panel of the expert.
template <class Tile>
struct TilePanels {
  int first, skipped;  // panels before the first half, and between the halves
  int first_end, end;  // ends of the expert's panels for each half

  __device__ TilePanels(const GemmArgs& a, const WorkTile& tile)
      : first(tile.first_panel),
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
  __device__ WorkTile find(const GemmArgs& a, int64_t number, int tile_rows, int tile_panels) {
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
  __device__ static int row_of(const GemmArgs& a, int expert) {
    if (a.offsets == nullptr) return expert <= 0 ? 0 : a.num_rows;
    return min(a.offsets[min(expert, a.num_experts)], a.num_rows);
  }
  int first_ = 0;       // first of the experts that a warp checks
  int64_t before_ = 0;  // tiles of rows of all earlier experts
};

}  // namespace moracle::cuda
