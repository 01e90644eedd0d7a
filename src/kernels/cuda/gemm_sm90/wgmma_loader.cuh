// The warpgroup that fills the stages, tile after tile without a gap. Weights are one bulk copy per
// panel. Rows of x are gathered in pieces of 16 bytes.
#pragma once

#include "kernels/cuda/gemm_sm80/mma_loader.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_args.h"
#include "kernels/cuda/gemm_sm90/wgmma_tile.cuh"

namespace moracle::cuda {

template <class Operand, class Tile>
class WgmmaLoader {
 public:
  __device__ WgmmaLoader(const WgmmaArgs& args, const WgmmaShared<Tile>& shared)
      : a_(args), shared_(shared) {}

  __device__ void run() {
    TileFinder finder;
    int at = 0;
    for (int64_t number = blockIdx.x / Tile::kCluster;; number += gridDim.x / Tile::kCluster) {
      const TilePlace place =
          balanced(finder.find(a_, number, Tile::kRows * Tile::kCluster, Tile::kAllPanels));
      wait_until_empty();
      if (thread() == 0) shared_.info(at).place = place;
      if (place.expert < 0) break;
      enter(place, shared_.info(at));
      for (int first = 0; first < a_.blocks; first += Tile::kBlocks) {
        if (first > 0) wait_until_empty();
        load(place, first);
        arrive_after_copies(shared_.full(ring_.slot));
        ring_.advance();
      }
      at = at + 1 == Tile::kInfos ? 0 : at + 1;
    }
    // A stage without data tells that no tile is left.
    if (thread() == 0) arrive(shared_.full(ring_.slot));
    arrive(shared_.full(ring_.slot));
  }

 private:
  static constexpr int kThreads = Tile::kLoaders;
  // Each block of a cluster copies its share of the panels to all of them.
  static constexpr int kOwnPanels = Tile::kAllPanels / Tile::kCluster;
  __device__ static int first_panel() { return cluster_rank<Tile::kCluster>() * kOwnPanels; }
  __device__ static int thread() { return static_cast<int>(threadIdx.x) - Tile::kComputers; }

  __device__ void wait_until_empty() const {
    wait_for<Tile::kCluster>(shared_.empty(ring_.slot), ring_.parity ^ 1);
  }

  // Spreads the rows of an expert evenly over its tiles, and those of a tile over the blocks of a
  // cluster, in multiples of 8: narrower products cost less.
  __device__ TilePlace balanced(TilePlace place) const {
    if (place.expert < 0) return place;
    constexpr int kRows = Tile::kRows * Tile::kCluster;
    int begin = 0, end = a_.num_rows;
    if (a_.offsets != nullptr) {
      begin = min(a_.offsets[place.expert], a_.num_rows);
      end = min(a_.offsets[place.expert + 1], a_.num_rows);
    }
    const int rows = end - begin, index = (place.first_row - begin) / kRows;
    const int parts = (rows + kRows - 1) / kRows * Tile::kCluster;
    const int part = index * Tile::kCluster + cluster_rank<Tile::kCluster>();
    const int first = part_begin(rows, part, parts);
    place.first_row = begin + first;
    place.rows = part_begin(rows, part + 1, parts) - first;
    return place;
  }
  __device__ static int part_begin(int rows, int part, int parts) {
    const int64_t at = int64_t{rows} * part + parts - 1;
    return min(rows, (static_cast<int>(at / parts) + 7) / 8 * 8);
  }

  __device__ void enter(const TilePlace& place, typename Tile::Info& info) {
    sync_threads(1, kThreads);  // the previous tile's rows have been read
    for (int r = thread(); r < Tile::kRows; r += kThreads) {
      int source = -1;
      if (r < place.rows) {
        source = place.first_row + r;
        if (a_.row_index != nullptr) source = a_.row_index[source];
      }
      shared_.sources()[r] = source;
      if constexpr (Operand::kXScales == XScales::kToken)
        copy4_to(shared_address(&info.x_scales[r]), a_.x_scales + max(source, 0), source >= 0);
    }
    sync_threads(1, kThreads);
    expert_ = a_.base + place.expert * a_.expert_bytes;
    if (thread() < kOwnPanels) {
      const TilePanels<Tile> panels(a_, place);
      // Past the last panel, read the last panel again; its results are discarded.
      panel_ = min(panels[first_panel() + thread()], a_.panels - 1);
    }
  }

  __device__ void load(const TilePlace& place, int first) {
    uint8_t* const stage = shared_.stage(ring_.slot);
    const int blocks = min(Tile::kBlocks, a_.blocks - first);
    load_codes(stage + Tile::kCodes, first, blocks);
    load_x(shared_address(stage), first);
    if constexpr (Operand::kGroups) load_scales(stage, place, first, first + blocks - 1);
    if constexpr (Operand::kXScales == XScales::kGroup) {
      const int group = group_of(a_.x_groups, first);
      for (int r = thread(); r < Tile::kRows; r += kThreads) {
        const int64_t source = shared_.sources()[r];
        copy4_to(shared_address(stage + Tile::kXScales) + r * 4,
                 a_.x_scales + max(source, int64_t{0}) * a_.x_groups.count + group, source >= 0);
      }
    }
  }

  __device__ void load_codes(uint8_t* to, int first, int blocks) {
    const int bytes = blocks * Tile::kBlockBytes;
    const uint32_t full = shared_.full(ring_.slot);
    if (blocks < Tile::kBlocks) {
      // Blocks past the end: zeros, since x is zero there and codes could be NaN.
      constexpr int kPieces = Tile::kPanelBytes / 16;
      for (int i = thread(); i < Tile::kAllPanels * kPieces; i += kThreads) {
        if (i % kPieces * 16 >= bytes) reinterpret_cast<uint4*>(to)[i] = uint4{};
      }
      fence_async_proxy();
      sync_threads(1, kThreads);  // all zeros are written before thread 0 arrives
    }
    if (thread() >= 32) return;
    if (thread() == 0) arrive_expecting(full, bytes * Tile::kAllPanels);
    __syncwarp();
    if (thread() < kOwnPanels) {
      const uint8_t* const from =
          expert_ + (int64_t{panel_} * a_.blocks + first) * Tile::kBlockBytes;
      copy_bulk<Tile::kCluster>(
          shared_address(to) + (first_panel() + thread()) * Tile::kPanelBytes, from, bytes, full);
    }
  }

  // Piece c of row r of an atom lies at r · 128 + (c ^ r % 8) · 16.
  __device__ void load_x(uint32_t stage, int first) {
    const int c = thread() % 8, row = thread() / 8;
    const uint32_t to = stage + row * 128 + ((c ^ row % 8) << 4);
    const int at = first * Tile::kXBlockBytes + c * 16;
    const int end = a_.blocks * Tile::kXBlockBytes;
    const int* const sources = shared_.sources() + row;
#pragma unroll
    for (int i = 0; i < Tile::kRows / 16; ++i) {
      const int source = sources[i * 16];
      const uint8_t* const from = a_.x + max(source, 0) * a_.x_stride + at;
#pragma unroll
      for (int atom = 0; atom < Tile::kAtoms; ++atom)
        copy16_to(to + atom * Tile::kAtomBytes + i * 2048, from + atom * 128,
                  source >= 0 && at + atom * 128 < end);
    }
  }

  // Loads the scales and zero points of every group from k-block `first` to k-block `last`.
  __device__ void load_scales(uint8_t* stage, const TilePlace& place, int first, int last) {
    constexpr int kEach = Tile::kScaleBytes / 16;  // pieces of a panel
    const int begin = group_of(a_.weight_groups, first), end = group_of(a_.weight_groups, last);
    const TilePanels<Tile> panels(a_, place);
    if (thread() < Tile::kAllPanels * kEach) {
      const int q = thread() / kEach, panel = min(panels[q], a_.panels - 1);
      const uint8_t* from =
          expert_ + a_.scales_at +
          (int64_t{panel} * a_.weight_groups.count + begin) * Tile::kScaleBytes +
          thread() % kEach * 16;
      uint32_t to = shared_address(stage + Tile::kScales) + thread() * 16;
      for (int group = begin; group <= end; ++group) {
        copy16_to(to, from, true);
        from += Tile::kScaleBytes, to += Tile::kAllPanels * Tile::kScaleBytes;
      }
    }
    if constexpr (Operand::kZeros) {
      const int q = thread() - (kThreads - Tile::kAllPanels);
      if (!a_.has_zeros || q < 0) return;
      const int panel = min(panels[q], a_.panels - 1);
      const uint8_t* from = expert_ + a_.zeros_at +
                            (int64_t{panel} * a_.weight_groups.count + begin) * 16;
      uint32_t to = shared_address(stage + Tile::kZeros) + q * 16;
      for (int group = begin; group <= end; ++group) {
        copy16_to(to, from, true);
        from += 16, to += Tile::kAllPanels * 16;
      }
    }
  }

  const WgmmaArgs& a_;
  const WgmmaShared<Tile>& shared_;
  RingSlot<Tile> ring_;
  const uint8_t* expert_ = nullptr;
  int panel_ = 0;  // of this thread's bulk copies
};

}  // namespace moracle::cuda
