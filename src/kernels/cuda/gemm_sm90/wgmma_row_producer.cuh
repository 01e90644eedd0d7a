// Producer for rows of x that are contiguous for each tile, so that TMA loads everything. Two warps
// issue, one lane each: one loads rows and their scales, the other weights and theirs.
#pragma once

#include "kernels/cuda/gemm_sm90/output_vectors.cuh"
#include "kernels/cuda/gemm_sm90/scale_rows.h"
#include "kernels/cuda/gemm_sm90/wgmma_args.h"
#include "kernels/cuda/gemm_sm90/wgmma_producer.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_tile.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/tiles/groups.cuh"
#include "kernels/cuda/tiles/tile_finder.cuh"

namespace moracle::cuda {

template <class Operand, class Tile>
class WgmmaRowProducer {
 public:
  static constexpr int kArrivals = 2;  // of both warps at each stage

  __device__ WgmmaRowProducer(const WgmmaArgs& args, const WgmmaShared<Tile>& shared)
      : a_(args), shared_(shared) {}

  __device__ void run() {
    static_assert(!Tile::kDense);
    static_assert(Tile::kRows % Tile::kBoxRows == 0);
    const int warp = (static_cast<int>(threadIdx.x) - Tile::kConsumers) / 32;
    if (warp >= kArrivals) return;
    TileFinder finder;
    int at = 0;
    pdl_wait();
    pdl_launch_dependents();
    for (int64_t number = blockIdx.x;; number += gridDim.x) {
      const WorkTile tile =
          balanced_tile<Operand, Tile>(a_, finder.find(a_, number, Tile::kRows, Tile::kAllPanels));
      enter(tile, warp == 0, shared_.info(at));
      if (tile.expert < 0) break;
      if (warp == 0)
        load_rows(tile);
      else
        load_weights(tile, shared_.info(at));
      at = at + 1 == Tile::kInfos ? 0 : at + 1;
    }
    // A stage without data signals the consumers that no tile is left.
    if (lane() == 0) mbarrier_arrive(shared_.full(ring_.slot));
  }

 private:
  static constexpr int kTmaTiles = Tile::kAllPanels / kTmaPanels;
  static constexpr bool kScalesInStages = Operand::kXScales == XScales::kGroup;
  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  __device__ void wait_until_empty() const {
    mbarrier_wait(shared_.empty(ring_.slot), ring_.parity ^ 1);
  }

  // Waits for the slot of the tile's first stage, while scales of tokens arrive for the warp that
  // loads rows.
  __device__ void enter(const WorkTile& tile, bool loads_rows, typename Tile::Info& info) const {
    constexpr int kEach = Operand::kXScales == XScales::kToken ? (Tile::kRows + 31) / 32 : 0;
    float scales[kEach + 1];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int r = lane() + 32 * i;
      scales[i] = loads_rows && r < tile.rows ? a_.x_scales[tile.first_row + r] : 0;
    }
    wait_until_empty();
    if (loads_rows) {
      if (lane() == 0) info.tile = tile;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int r = lane() + 32 * i;
        if (r < tile.rows) info.x_scales[r] = scales[i];
      }
    }
    __syncwarp();
  }

  // Calls `load` for each stage of the tile, in one lane.
  template <class Load>
  __device__ void each_stage(Load load) {
    for (int first = 0; first < a_.blocks; first += Tile::kBlocks) {
      if (lane() == 0) {
        if (first > 0) wait_until_empty();
        load(first, shared_address(shared_.stage(ring_.slot)), shared_.full(ring_.slot));
      }
      ring_.advance();
    }
    __syncwarp();
  }

  // Rows past the tile's last are those of another expert, or zeros: their products are not stored.
  __device__ void load_rows(const WorkTile& tile) {
    constexpr int kBytes = Tile::kBoxRows * 128;
    const int boxes = (tile.rows + Tile::kBoxRows - 1) / Tile::kBoxRows;
    const int scale_bytes = (tile.rows + 3) / 4 * 16;
    const float* const scales = a_.x_scales + scale_row(tile.first_row, tile.expert);
    each_stage([&](int first, uint32_t stage, uint32_t full) {
      mbarrier_arrive_expect_tx(
          full, boxes * Tile::kAtoms * kBytes + (kScalesInStages ? scale_bytes : 0));
      for (int i = 0; i < boxes; ++i) {
#pragma unroll
        for (int atom = 0; atom < Tile::kAtoms; ++atom)
          tma_load(stage + atom * Tile::kAtomBytes + i * kBytes, a_.rows,
                   first * Tile::kXBlockBytes + atom * 128, tile.first_row + i * Tile::kBoxRows,
                   full);
      }
      if constexpr (kScalesInStages)
        tma_load_bytes(stage + Tile::kXScales,
                       scales + int64_t{group_of(a_.x_groups, first)} * a_.x_scale_rows,
                       scale_bytes, full);
    });
  }

  // Calls `one` for the scales and the bias of each TMA tile's outputs: where they come to, where
  // they lie, and their bytes. They are copied with the tile's first stage.
  template <class One>
  __device__ __forceinline__ void each_output_copy(const WorkTile& tile, typename Tile::Info& info,
                                                   One one) const {
    const auto each = [&](const OutputVectors<Tile>& from, float* to) {
#pragma unroll
      for (int i = 0; i < kTmaTiles; ++i) {
        if (const int bytes = from.tile_bytes(i); bytes > 0)
          one(shared_address(to) + i * from.most_tile_bytes(), from.tile(i), bytes);
      }
    };
    if constexpr (kScalesOutputs<Operand>)
      each(OutputVectors<Tile>::scales(a_, tile), info.w_scales);
    if constexpr (Operand::kTokenRows) {
      if (a_.has_bias) each(OutputVectors<Tile>::bias(a_, tile), info.bias);
    }
  }

  __device__ void load_weights(const WorkTile& tile, typename Tile::Info& info) {
    WeightCopies<Operand, Tile> weights{a_};
    weights.enter(tile);
    const uint8_t* const scales = a_.base + tile.expert * a_.expert_bytes + a_.scales_at;
    const uint8_t* of_panel[kTmaTiles];  // 16 scales of each group
#pragma unroll
    for (int i = 0; i < kTmaTiles; ++i)
      of_panel[i] =
          scales + int64_t{min(weights.panel[i], a_.panels - 1)} * a_.weight_groups.count * 64;
    each_stage([&](int first, uint32_t stage, uint32_t full) {
      int bytes = weights.bytes() + (kScalesInStages ? kTmaTiles * Tile::kWeightScale * 4 : 0);
      if (first == 0)
        each_output_copy(tile, info, [&](uint32_t, const uint4*, int more) { bytes += more; });
      mbarrier_arrive_expect_tx(full, bytes);
      if (first == 0) {
        each_output_copy(tile, info, [&](uint32_t to, const uint4* from, int more) {
          tma_load_bytes(to, from, more, full);
        });
      }
      weights.load(stage, full, first);
      if constexpr (kScalesInStages) {
#pragma unroll
        for (int i = 0; i < kTmaTiles; ++i)
          tma_load_bytes(stage + Tile::kXScales + (Tile::kRows + i * Tile::kWeightScale) * 4,
                         of_panel[i] + group_of(a_.weight_groups, first) * 64,
                         Tile::kWeightScale * 4, full);
      }
    });
  }

  const WgmmaArgs& a_;
  const WgmmaShared<Tile>& shared_;
  RingSlot<Tile> ring_;
};

}  // namespace moracle::cuda
