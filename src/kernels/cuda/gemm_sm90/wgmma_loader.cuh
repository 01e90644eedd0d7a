// The warpgroup that fills the stages, tile after tile without a gap. Rows of x are gathered in
// pieces of 16 bytes.
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
    for (int64_t number = blockIdx.x;; number += gridDim.x) {
      const TilePlace place = balanced(finder.find(a_, number, Tile::kRows, Tile::kAllPanels));
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
#ifdef BULK
  static constexpr int kBulkPanels = BULK, kWarpBulks = kBulkPanels / (kThreads / 32);
#else
  static constexpr int kBulkPanels = Tile::kHalf, kWarpBulks = kBulkPanels / (kThreads / 32);
#endif
  __device__ static int bulk_panel() { return thread() / 32 * kWarpBulks + thread() % kWarpBulks; }
  __device__ static int thread() { return static_cast<int>(threadIdx.x) - Tile::kComputers; }

  __device__ void wait_until_empty() const {
    wait_for(shared_.empty(ring_.slot), ring_.parity ^ 1);
  }

  // Spreads the rows of an expert evenly over its tiles, in multiples of 8: narrower products cost
  // less.
  __device__ TilePlace balanced(TilePlace place) const {
    if (place.expert < 0) return place;
    int begin = 0, end = a_.num_rows;
    if (a_.offsets != nullptr) {
      begin = min(a_.offsets[place.expert], a_.num_rows);
      end = min(a_.offsets[place.expert + 1], a_.num_rows);
    }
    const int rows = end - begin, part = (place.first_row - begin) / Tile::kRows;
    const int parts = (rows + Tile::kRows - 1) / Tile::kRows;
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
    // Past the last panel, read the last panel again; its results are discarded.
    const TilePanels<Tile> panels(a_, place);
    panel_ = min(panels[bulk_panel()], a_.panels - 1);
    second_ = panels[kBulkPanels], skipped_ = panels.skipped;
    contiguous_ = second_ + Tile::kAllPanels - kBulkPanels <= a_.panels;
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

  // Half of the panels come by one bulk copy each, the others in pieces: bulk copies reach 35 bytes
  // a cycle and pieces 45, and products need up to 48. A last stage of fewer k-blocks is
  // padded with zeros, since x is zero there and codes could be NaN.
  __device__ void load_codes(uint8_t* to, int first, int blocks) {
    const uint32_t full = shared_.full(ring_.slot);
    const bool whole = blocks == Tile::kBlocks;
    // Lanes issue bulk copies one after another, so every warp takes some.
    if (thread() == 0) arrive_expecting(full, whole ? kBulkPanels * Tile::kPanelBytes : 0);
    if (whole && thread() % 32 < kWarpBulks)
      copy_bulk(shared_address(to) + bulk_panel() * Tile::kPanelBytes, at(panel_, first),
                Tile::kPanelBytes, full);
    constexpr int kPieces = Tile::kPanelBytes / 16, kStep = kThreads / kPieces;
    const int piece = thread() % kPieces * 16;
    if (whole && contiguous_) {
      const uint8_t* from = at(second_ + thread() / kPieces, first) + piece;
      const int64_t step = int64_t{kStep} * a_.blocks * Tile::kBlockBytes;
      const uint32_t there = shared_address(to) + kBulkPanels * Tile::kPanelBytes + thread() * 16;
#pragma unroll
      for (int q = 0; q < Tile::kAllPanels - kBulkPanels; q += kStep, from += step)
        copy16_to(there + q * Tile::kPanelBytes, from, true);
      return;
    }
#pragma unroll 1
    for (int q = whole ? kBulkPanels : 0; q < Tile::kAllPanels; q += kStep) {
      const int p = q + thread() / kPieces;
      const int panel = min(second_ + p - (p < kBulkPanels ? skipped_ : 0) - kBulkPanels,
                            a_.panels - 1);
      copy16_to(shared_address(to) + q * Tile::kPanelBytes + thread() * 16,
                at(panel, first) + piece, piece < blocks * Tile::kBlockBytes);
    }
  }
  // Codes of a panel from k-block `first` on.
  __device__ const uint8_t* at(int panel, int first) const {
    return expert_ + (int64_t{panel} * a_.blocks + first) * Tile::kBlockBytes;
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
  // The panel of this thread's bulk copies, the first of the others, and the panels between.
  int panel_ = 0, second_ = 0, skipped_ = 0;
  bool contiguous_ = true;
};

}  // namespace moracle::cuda
