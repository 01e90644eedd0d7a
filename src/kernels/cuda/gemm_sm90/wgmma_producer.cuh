// Producer warpgroup: fills the pipeline stages, tile after tile without a gap. TMA loads the
// weights, cp.async gathers the rows of x in vectors of 16 bytes.
#pragma once

#include "kernels/cuda/gemm_sm90/output_vectors.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_args.h"
#include "kernels/cuda/gemm_sm90/wgmma_tile.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/tiles/groups.cuh"
#include "kernels/cuda/tiles/tile_finder.cuh"

namespace moracle::cuda {

/// Spreads the rows of an expert evenly over its tiles, in multiples of 8: narrower products cost
/// less. Where tokens are rows, a warpgroup multiplies 64 or none.
template <class Operand, class Tile>
__device__ WorkTile balanced_tile(const WgmmaArgs& a, WorkTile tile) {
  if (Operand::kTokenRows || tile.expert < 0) return tile;
  int begin = 0, end = a.num_rows;
  if (a.offsets != nullptr) {
    begin = min(a.offsets[tile.expert], a.num_rows);
    end = min(a.offsets[tile.expert + 1], a.num_rows);
  }
  const int rows = end - begin, index = (tile.first_row - begin) / Tile::kRows;
  const int tiles = (rows + Tile::kRows - 1) / Tile::kRows;
  const auto tile_begin = [&](int i) {
    const int64_t at = int64_t{rows} * i + tiles - 1;
    return min(rows, (static_cast<int>(at / tiles) + 7) / 8 * 8);
  };
  const int first = tile_begin(index);
  tile.first_row = begin + first;
  tile.rows = tile_begin(index + 1) - first;
  return tile;
}

/// Copies of the weights of a tile. TMA fills elements outside the matrix with zeros and counts
/// their bytes, too.
template <class Operand, class Tile>
struct WeightCopies {
  static constexpr int kTmaTiles = Tile::kAllPanels / kTmaPanels;
  const WgmmaArgs& a;
  int expert = 0, panel[kTmaTiles] = {};

  __device__ void enter(const WorkTile& tile) {
    expert = tile.expert;
    const TilePanels<Tile> panels(a, tile);
#pragma unroll
    for (int i = 0; i < kTmaTiles; ++i) panel[i] = panels[i * kTmaPanels];
  }
  __device__ bool zeros() const {
    return Operand::kZeros && a.has_zeros;
  }
  __device__ bool minimums() const {
    return Operand::kValues && a.has_minimums;
  }
  /// Bytes of a stage.
  __device__ int bytes() const {
    const int group_bytes =
        Operand::kGroups ? Tile::kScaleBytes + (zeros() ? 16 : 0) + (minimums() ? 64 : 0) : 0;
    return Tile::kAllPanels * (Tile::kPanelBytes + a.tma.groups * group_bytes);
  }
  /// Issues the copies of the stage that begins with k-block `first`.
  __device__ void load(uint32_t stage, uint32_t full, int first) const {
    const int group = Operand::kGroups ? group_of(a.weight_groups, first * a.sub_blocks) : 0;
#pragma unroll
    for (int i = 0; i < kTmaTiles; ++i) {
      const int before = i * kTmaPanels;  // panels of earlier tiles
      const uint32_t to = stage + Tile::kCodes + before * Tile::kPanelBytes;
      if constexpr (Operand::kTokenRows)
        tma_load(to, a.tma.columns, 0, panel[i], first, expert, full);
      else
        tma_load(to, a.tma.codes, first * (Tile::kBlockBytes / 8), panel[i], expert, full);
      if constexpr (Operand::kGroups) {
        const int runs = before * a.tma.groups;
        tma_load(stage + Tile::kScales + runs * Tile::kScaleBytes, a.tma.scales, group * 16,
                 panel[i], expert, full);
        if (zeros())
          tma_load(stage + Tile::kZeros + runs * 16, a.tma.zeros, group * 16, panel[i], expert,
                   full);
        if (minimums())
          tma_load(stage + Tile::kMinimums + runs * 64, a.tma.minimums, group * 16, panel[i],
                   expert, full);
      }
    }
  }
};

template <class Operand, class Tile>
class WgmmaProducer {
 public:
  static constexpr int kArrivals = Tile::kProducers + 1;  // at each stage

  __device__ WgmmaProducer(const WgmmaArgs& args, const WgmmaShared<Tile>& shared)
      : a_(args), own_{args}, shared_(shared), weights_{args} {}

  __device__ void run() {
    TileFinder finder;
    int at = 0;
    const unsigned cluster = Tile::kDense ? static_cast<unsigned>(a_.cluster) : 1;
    if constexpr (!Tile::kAhead) begin_after_earlier();
    for (int64_t number = blockIdx.x / cluster;; number += gridDim.x / cluster) {
      const WorkTile tile =
          balanced_tile<Operand, Tile>(a_, finder.find(a_, number, Tile::kRows, Tile::kAllPanels));
      wait_until_empty();
      if (thread() == 0) shared_.info(at).tile = tile;
      if (tile.expert >= 0) weights_.enter(tile);
      if (Tile::kAhead && number == blockIdx.x / cluster) {
        if (tile.expert >= 0) load_ahead();
        begin_after_earlier();
      }
      if (tile.expert < 0) break;
      enter_rows(tile, shared_.info(at));
      for (int first = own_.begin(); first < own_.end(); first += Tile::kBlocks) {
        if (first > own_.begin()) wait_until_empty();
        if constexpr (Tile::kArriving < Tile::kStages) limit_arriving();
        load(first);
        mbarrier_arrive_after_cp_async(shared_.full(ring_.slot));
        ring_.advance();
      }
      at = at + 1 == Tile::kInfos ? 0 : at + 1;
    }
    // A stage without data signals the consumers that no tile is left.
    if (thread() == 0) mbarrier_arrive(shared_.full(ring_.slot));
    mbarrier_arrive(shared_.full(ring_.slot));
  }

 private:
  static constexpr int kThreads = Tile::kProducers;
  static constexpr int kTmaTiles = Tile::kAllPanels / kTmaPanels;
  __device__ static int thread() { return static_cast<int>(threadIdx.x) - Tile::kConsumers; }

  __device__ void wait_until_empty() const {
    mbarrier_wait(shared_.empty(ring_.slot), ring_.parity ^ 1);
  }

  __device__ int source_of(const WorkTile& tile, int r) const {
    const int row = tile.first_row + r;
    return a_.row_index != nullptr ? a_.row_index[row] : row;
  }

  // Before this wait only the previous kernel may still run. It does not write weights, offsets and
  // row_index, so read these earlier. The CTA's stores need copies of x, so they come later.
  __device__ static void begin_after_earlier() {
    pdl_wait();
    pdl_launch_dependents();
  }

  // Loads weights of the first tile while the previous kernel writes x.
  __device__ void load_ahead() {
    const int stages = (own_.end() - own_.begin() + Tile::kBlocks - 1) / Tile::kBlocks;
    ahead_ = min(Tile::kArriving, stages);
    if (thread() != 0) return;
    for (int slot = 0; slot < ahead_; ++slot)
      load_weights(slot, own_.begin() + slot * Tile::kBlocks);
  }

  // Waits for the stage that was issued kArriving stages ago.
  __device__ void limit_arriving() const {
    const bool lap_ago = ring_.slot < Tile::kArriving;
    mbarrier_wait(shared_.full(ring_.slot - Tile::kArriving + (lap_ago ? Tile::kStages : 0)),
                  ring_.parity ^ (lap_ago ? 1 : 0));
  }

  // Rows past the tile's last are not copied: their products are not stored.
  __device__ void enter_rows(const WorkTile& tile, typename Tile::Info& info) {
    const int row = thread() / 8;
    own_rows_ = (tile.rows - row + 15) / 16;
    const auto step = static_cast<unsigned>(a_.x_stride / 16);
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i)
      x_[i] = i < own_rows_ ? source_of(tile, row + i * 16) * step + thread() % 8 : 0;
    if constexpr (Operand::kTokenRows) {
      if (a_.has_bias) copy(OutputVectors<Tile>::bias(a_, tile), info.bias);
    }
    if constexpr (Operand::kXScales == XScales::kToken) {
      for (int r = thread(); r < tile.rows; r += kThreads)
        cp_async_4(shared_address(&info.x_scales[r]), a_.x_scales + source_of(tile, r), true);
      if constexpr (kScalesOutputs<Operand>)
        copy(OutputVectors<Tile>::scales(a_, tile), info.w_scales);
    } else if constexpr (Operand::kXScales == XScales::kGroup) {
      static_assert(Tile::kRows <= kThreads);
      if constexpr (Operand::kTokenRows) {
        const TilePanels<Tile> panels(a_, tile);
        const auto* const scales =
            reinterpret_cast<const float*>(a_.base + tile.expert * a_.expert_bytes + a_.scales_at);
        constexpr int kScaledPanels = kTmaPanels / kTileScales<Operand>;
        if (own_scale() >= 0)
          w_scales_ = scales + int64_t{min(panels[own_scale() * kScaledPanels], a_.panels - 1)} *
                                   a_.weight_groups.count * 16;
      }
      x_scales_ = thread() < tile.rows
                      ? a_.x_scales + int64_t{source_of(tile, thread())} * a_.x_groups.count
                      : nullptr;
    }
  }

  __device__ static void copy(const OutputVectors<Tile>& from, float* to) {
    static_assert(OutputVectors<Tile>::kMost <= kThreads);
    if (thread() < from.count())
      cp_async_16(shared_address(to) + thread() * 16, from.at(thread()), true);
  }

  __device__ void load(int first) {
    const uint32_t stage = shared_address(shared_.stage(ring_.slot));
    if (Tile::kAhead && ahead_ > 0)
      --ahead_;
    else if (thread() == 0)
      load_weights(ring_.slot, first);
    load_x(stage, first);
    if constexpr (Operand::kXScales == XScales::kGroup) {
      if (x_scales_ != nullptr)
        cp_async_4(stage + Tile::kXScales + thread() * 4, x_scales_ + group_of(a_.x_groups, first),
                   true);
      if (Operand::kTokenRows && own_scale() >= 0)
        cp_async_4(stage + Tile::kXScales + (Tile::kRows + own_scale()) * 4,
                   w_scales_ + group_of(a_.weight_groups, first) * 16, true);
    }
  }

  // The scale of the TMA tiles of weights that this thread copies, or -1: not a thread of the warp
  // that copies TMA tiles.
  __device__ static int own_scale() {
    return thread() >= 32 && thread() < 32 + kTmaTiles * kTileScales<Operand> ? thread() - 32 : -1;
  }

  __device__ void load_weights(int slot, int first) const {
    const uint32_t full = shared_.full(slot);
    mbarrier_arrive_expect_tx(full, weights_.bytes());
    weights_.load(shared_address(shared_.stage(slot)), full, first);
  }

  // Vector c of row r of an atom lies at r · 128 + (c ^ r % 8) · 16.
  __device__ void load_x(uint32_t stage, int first) {
    const int c = thread() % 8, row = thread() / 8;
    const uint32_t to = stage + row * 128 + ((c ^ row % 8) << 4);
    const uint8_t* const x = a_.x + first * Tile::kXBlockBytes;
    const bool whole = first + Tile::kBlocks <= a_.blocks;
    const int end = (a_.blocks - first) * Tile::kXBlockBytes - c * 16;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      if (i >= own_rows_) break;
      const uint8_t* const from = x + uint64_t{x_[i]} * 16;
#pragma unroll
      for (int atom = 0; atom < Tile::kAtoms; ++atom)
        cp_async_16(to + atom * Tile::kAtomBytes + i * 2048, from + atom * 128,
                    whole || atom * 128 < end);
    }
  }

  static constexpr int kOwnRows = Tile::kRows / 16;  // of x, every 16th, that a thread copies from

  const WgmmaArgs& a_;
  const OwnBlocks<Tile> own_;
  const WgmmaShared<Tile>& shared_;
  RingSlot<Tile> ring_;
  WeightCopies<Operand, Tile> weights_;
  unsigned x_[kOwnRows] = {};  // this thread's rows, in units of 16 bytes
  int own_rows_ = 0;
  int ahead_ = 0;  // stages whose weights are in flight already
  const float *x_scales_ = nullptr, *w_scales_ = nullptr;
};

}  // namespace moracle::cuda
