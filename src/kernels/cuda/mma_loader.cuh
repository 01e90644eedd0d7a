// Fills the stages of a block's tiles, one after the other without a break between tiles. Nobody
// waits here: what is copied arrives in batches, a stage each.
#pragma once

#include "kernels/cuda/mma_tile.cuh"

namespace moracle::cuda {

/// Which group a block of columns belongs to.
__device__ inline int group_of(const MmaArgs& a, int block) {
  return a.group_shift >= 0 ? block >> a.group_shift : block / a.group_blocks;
}

template <class Operand, class Tile>
class MmaLoader {
 public:
  // Places of tiles between the one that is loaded and the one that is computed.
  static constexpr int kPlaces = Tile::kStages + 1;

  __device__ MmaLoader(const MmaArgs& args, uint8_t* stages, TilePlace* places)
      : a_(args), stages_(stages), places_(places), number_(blockIdx.x) {
    enter_tile();
  }

  /// The next stage, or an empty batch where none is left.
  __device__ void load() {
    if (place_.expert >= 0) {
      uint8_t* const stage = stages_ + slot_ * Tile::kStageBytes;
      const bool last = block_ + Tile::kBlocks >= a_.blocks;
      load_codes(stage);
      load_x(stage + Tile::kX);
      if constexpr (Operand::kScaled) {
        if (Operand::kGroups || last) load_scales(stage);
      }
      if (last && a_.has_bias) load_bias(stage + Tile::kBias);
      if constexpr (Operand::kXScales != XScales::kNone) {
        if (Operand::kXScales == XScales::kGroup || last)
          load_x_scales(reinterpret_cast<float*>(stage + Tile::kXScales));
      }
      slot_ = slot_ + 1 == Tile::kStages ? 0 : slot_ + 1;
      block_ += Tile::kBlocks;
      if (last) {
        number_ += gridDim.x;
        block_ = 0;
        enter_tile();
      }
    }
    end_batch();
  }

 private:
  static constexpr int kThreads = Tile::kThreads;
  // Pieces of 16 bytes: of a block of a row of x, and of all rows of it.
  static constexpr int kRowPieces = Tile::kXBlockBytes / 16;
  static constexpr int kXPieces = Tile::kRows * kRowPieces;
  static constexpr int kOwnRows = kXPieces > kThreads ? kXPieces / kThreads : 1;
  static_assert(kXPieces % kThreads == 0 || kThreads % kXPieces == 0);

  __device__ void enter_tile() {
    place_ = finder_.find(a_, number_, Tile::kRows, Tile::kAllPanels);
    if (threadIdx.x == 0) places_[at_] = place_;
    at_ = at_ + 1 == kPlaces ? 0 : at_ + 1;
    if (place_.expert < 0) return;
    expert_ = a_.base + place_.expert * a_.expert_bytes;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int r = (static_cast<int>(threadIdx.x) + i * kThreads) % kXPieces / kRowPieces;
      row_[i] = r < place_.rows ? a_.x + source_of(r) * a_.x_stride : nullptr;
    }
    if constexpr (Operand::kXScales != XScales::kNone) {
      const int r = static_cast<int>(threadIdx.x) % Tile::kRows;
      x_scales_ = r < place_.rows ? a_.x_scales + source_of(r) * a_.x_groups : nullptr;
    }
  }
  __device__ int64_t source_of(int r) const {
    const int row = place_.first_row + r;
    return a_.row_index != nullptr ? a_.row_index[row] : row;
  }
  // Past the last panel the last is read again; nobody keeps what comes of it.
  __device__ int64_t panel(int p) const {
    return min(place_.first_panel + p, a_.panels - 1);
  }

  __device__ void load_codes(uint8_t* to) {
    constexpr int kPieces = Tile::kBlocks * Tile::kBlockBytes / 16;  // of a panel
    constexpr int kAll = Tile::kAllPanels * kPieces;
    static_assert(kAll % kThreads == 0);
    const int64_t panel_bytes = int64_t{a_.blocks} * Tile::kBlockBytes;
    const uint8_t* const from = expert_ + int64_t{block_} * Tile::kBlockBytes;
#pragma unroll
    for (int j = 0; j < kAll / kThreads; ++j) {
      const int i = static_cast<int>(threadIdx.x) + j * kThreads, piece = i % kPieces;
      const bool there = block_ + piece * 16 / Tile::kBlockBytes < a_.blocks;
      copy16(to + i * 16, there ? from + panel(i / kPieces) * panel_bytes + piece * 16 : expert_,
             there);
    }
  }

  __device__ void load_x(uint8_t* to) {
    constexpr int kAll = Tile::kBlocks * kXPieces;
#pragma unroll
    for (int j = 0; j < (kAll + kThreads - 1) / kThreads; ++j) {
      const int i = static_cast<int>(threadIdx.x) + j * kThreads;
      if (kAll % kThreads != 0 && i >= kAll) return;
      const uint8_t* const row = row_[kOwnRows == 1 ? 0 : j % kOwnRows];
      const int at = (block_ + i / kXPieces) * Tile::kXBlockBytes + i % kRowPieces * 16;
      const bool there = row != nullptr && at < a_.x_bytes;
      if (a_.x_aligned)
        copy16(to + i * 16, there ? row + at : a_.x, there);
      else
        copy_unaligned(to + i * 16, row + at, there);
    }
  }
  __device__ static void copy_unaligned(uint8_t* to, const uint8_t* from, bool there) {
    using Element = std::conditional_t<Operand::kXBytes == 2, uint16_t, uint8_t>;
    for (int i = 0; i < 16 / Operand::kXBytes; ++i) {
      reinterpret_cast<Element*>(to)[i] =
          there ? reinterpret_cast<const Element*>(from)[i] : Element{0};
    }
  }

  // Of every group that the stage's blocks belong to, and their zero points.
  __device__ void load_scales(uint8_t* stage) {
    const int first = Operand::kGroups ? group_of(a_, block_) : 0;
    const int last =
        Operand::kGroups ? group_of(a_, min(block_ + Tile::kBlocks, a_.blocks) - 1) : 0;
    constexpr int kRuns = Tile::kAllPanels * Tile::kGroups;
    for (int i = static_cast<int>(threadIdx.x); i < kRuns * 4; i += kThreads) {
      const int run = i / 4, g = first + run % Tile::kGroups;
      if (g > last) continue;
      const int64_t at = (panel(run / Tile::kGroups) * a_.groups + g) * 16 + i % 4 * 4;
      if (!a_.scale_is_exponent)
        copy16(stage + Tile::kScales + i * 16, expert_ + a_.scales_at + at * 4, true);
      else if (i % 4 == 0)
        copy16(stage + Tile::kScales + i * 16, expert_ + a_.scales_at + at, true);
      if (Operand::kZeros && a_.has_zeros && i % 4 == 0)
        copy16(stage + Tile::kZeros + run * 16, expert_ + a_.zeros_at + at, true);
    }
  }

  __device__ void load_bias(uint8_t* to) {
    for (int i = static_cast<int>(threadIdx.x); i < Tile::kAllPanels * 4; i += kThreads)
      copy16(to + i * 16, expert_ + a_.bias_at + panel(i / 4) * 64 + i % 4 * 16, true);
  }

  __device__ void load_x_scales(float* to) {
    const bool one = Operand::kXScales == XScales::kToken;
    const int first = one ? 0 : block_ / a_.x_group_blocks;
    const int last = one ? 0 : (min(block_ + Tile::kBlocks, a_.blocks) - 1) / a_.x_group_blocks;
    static_assert(kThreads % Tile::kRows == 0);
    for (int i = static_cast<int>(threadIdx.x); i < Tile::kXGroups * Tile::kRows; i += kThreads) {
      const int g = first + i / Tile::kRows;
      if (g > last) break;
      const bool there = x_scales_ != nullptr;
      copy4(to + i, there ? x_scales_ + g : a_.x_scales, there);
    }
  }

  const MmaArgs& a_;
  uint8_t* const stages_;
  TilePlace* const places_;
  TileFinder finder_;
  TilePlace place_{};
  int64_t number_;
  const uint8_t* expert_ = nullptr;
  const uint8_t* row_[kOwnRows] = {};
  const float* x_scales_ = nullptr;  // of the row that this thread copies scales of
  int block_ = 0, slot_ = 0, at_ = 0;
};

}  // namespace moracle::cuda
