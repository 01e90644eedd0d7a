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
        load(first);
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
  static constexpr int kWarpPanels = Tile::kAllPanels / (kThreads / 32);
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

  __device__ int source_of(const TilePlace& place, int r) const {
    const int row = place.first_row + r;
    return a_.row_index != nullptr ? a_.row_index[row] : row;
  }

  // Rows past the tile's last are not copied: what they multiply is not stored.
  __device__ void enter(const TilePlace& place, typename Tile::Info& info) {
    expert_ = a_.base + place.expert * a_.expert_bytes;
    const TilePanels<Tile> panels(a_, place);
    // Past the last panel, read the last panel again; its results are discarded.
    const auto panel_of = [&](int q) { return min(panels[q], a_.panels - 1); };
#pragma unroll
    for (int i = 0; i < kWarpPanels; ++i) panel_[i] = panel_of(warp() * kWarpPanels + i);
    const int row = thread() / 8;
    own_rows_ = (place.rows - row + 15) / 16;
    const auto step = static_cast<unsigned>(a_.x_stride / 16);
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i)
      x_[i] = i < own_rows_ ? source_of(place, row + i * 16) * step + thread() % 8 : 0;
    if constexpr (Operand::kXScales == XScales::kToken) {
      for (int r = thread(); r < place.rows; r += kThreads)
        copy4_to(shared_address(&info.x_scales[r]), a_.x_scales + source_of(place, r), true);
    } else if constexpr (Operand::kXScales == XScales::kGroup) {
      static_assert(Tile::kRows <= kThreads);
      x_scales_ = thread() < place.rows
                      ? a_.x_scales + int64_t{source_of(place, thread())} * a_.x_groups.count
                      : nullptr;
    }
    if constexpr (Operand::kGroups) {
      // The first threads copy scales, the last ones zero points.
      const bool zeros = is_zeros();
      const int q = zeros ? thread() - (kThreads - Tile::kAllPanels)
                          : min(thread() / kScalePieces, Tile::kAllPanels - 1);
      const int64_t at = int64_t{panel_of(q)} * a_.weight_groups.count;
      scales_ =
          zeros ? expert_ + a_.zeros_at + at * 16
                : expert_ + a_.scales_at + at * Tile::kScaleBytes + thread() % kScalePieces * 16;
    }
  }

  __device__ void load(int first) {
    uint8_t* const stage = shared_.stage(ring_.slot);
    const int blocks = min(Tile::kBlocks, a_.blocks - first);
    load_codes(stage + Tile::kCodes, first, blocks);
    load_x(shared_address(stage), first);
    if constexpr (Operand::kGroups) load_scales(stage, first, first + blocks - 1);
    if constexpr (Operand::kXScales == XScales::kGroup) {
      if (x_scales_ != nullptr)
        copy4_to(shared_address(stage + Tile::kXScales) + thread() * 4,
                 x_scales_ + group_of(a_.x_groups, first), true);
    }
  }

  // One bulk copy for each panel. Bulk copies of a warp are issued one after another, so every warp
  // takes some.
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
    if (thread() == 0) arrive_expecting(full, bytes * Tile::kAllPanels);
    if (thread() % 32 == 0) {
#pragma unroll
      for (int i = 0; i < kWarpPanels; ++i) {
        const int64_t from = (int64_t{panel_[i]} * a_.blocks + first) * Tile::kBlockBytes;
        copy_bulk(shared_address(to) + (warp() * kWarpPanels + i) * Tile::kPanelBytes,
                  expert_ + from, bytes, full);
      }
    }
    __syncwarp();
  }

  // Piece c of row r of an atom lies at r · 128 + (c ^ r % 8) · 16.
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
        copy16_to(to + atom * Tile::kAtomBytes + i * 2048, from + atom * 128,
                  whole || atom * 128 < end);
    }
  }

  // Loads the scales and zero points of every group from k-block `first` to k-block `last`.
  __device__ void load_scales(uint8_t* stage, int first, int last) {
    const bool zeros = is_zeros();
    if (zeros ? !a_.has_zeros : thread() >= Tile::kAllPanels * kScalePieces) return;
    const int begin = group_of(a_.weight_groups, first), end = group_of(a_.weight_groups, last);
    const int bytes = zeros ? 16 : Tile::kScaleBytes;
    const uint8_t* from = scales_ + begin * bytes;
    uint32_t to = shared_address(stage) +
                  (zeros ? Tile::kZeros + (thread() - kThreads + Tile::kAllPanels) * 16
                         : Tile::kScales + thread() * 16);
    for (int group = begin; group <= end; ++group) {
      copy16_to(to, from, true);
      from += bytes, to += Tile::kAllPanels * bytes;
    }
  }
  __device__ static bool is_zeros() {
    return Operand::kZeros && thread() >= kThreads - Tile::kAllPanels;
  }
  __device__ static int warp() {
    return thread() / 32;
  }

  // Rows of x that a thread copies from, every 16th, and pieces of 16 bytes of scales of a panel.
  static constexpr int kOwnRows = Tile::kRows / 16, kScalePieces = Tile::kScaleBytes / 16;

  const WgmmaArgs& a_;
  const WgmmaShared<Tile>& shared_;
  RingSlot<Tile> ring_;
  const uint8_t* expert_ = nullptr;
  int panel_[kWarpPanels] = {};  // of this warp's bulk copies
  unsigned x_[kOwnRows] = {};    // this thread's rows, in units of 16 bytes
  int own_rows_ = 0;
  const float* x_scales_ = nullptr;
  const uint8_t* scales_ = nullptr;
};

}  // namespace moracle::cuda
