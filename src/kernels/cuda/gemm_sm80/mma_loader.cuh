// Fills the pipeline stages of a CTA's tiles without a gap between tiles. The loader never waits:
// each stage is one cp.async group. A thread copies the same vectors of 16 bytes of every
// stage, so within a tile it only advances its pointers.
#pragma once

#include "kernels/cuda/gemm_sm80/mma_tile.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/tiles/groups.cuh"
#include "kernels/cuda/tiles/tile_finder.cuh"

namespace moracle::cuda {

/// Swizzle: the position of a vector in row r of a k-block. It is its own inverse. Only operands
/// with groups of half k-blocks need it: a lane then reads half as many bytes at once, and
/// unswizzled rows would conflict in their banks.
template <class Operand>
__device__ inline int swizzled_vector(int r, int vector) {
  if constexpr (!Operand::kHalves) return vector;
  return vector ^ (Operand::kXBytes == 2 ? r & 2 : r >> 2 & 1);
}

template <class Operand, class Tile>
class MmaLoader {
 public:
  // Tile slots, from the tile being computed to the tile being loaded.
  static constexpr int kTileSlots = Tile::kStages + 1;

  __device__ MmaLoader(const GemmArgs& args, uint8_t* stages, int num_stages, WorkTile* tiles)
      : a_(args), stages_(stages), num_stages_(num_stages), tiles_(tiles), number_(blockIdx.x) {
    enter_tile();
  }

  /// Loads the next stage, or commits an empty batch if no stage is left.
  __device__ void load() {
    if (tile_.expert >= 0) {
      uint8_t* const stage = stages_ + slot_ * Tile::kStageBytes;
      const bool last = block_ + Tile::kBlocks >= a_.blocks;
      load_codes(stage);
      if (a_.x_aligned)
        load_x(stage + Tile::kX);
      else
        load_unaligned_x(stage + Tile::kX);
      if constexpr (Operand::kScaled) {
        if (Operand::kGroups || last) load_scales(stage);
      }
      if constexpr (Operand::kXScales != XScales::kNone) {
        if (Operand::kXScales == XScales::kGroup || last)
          load_x_scales(reinterpret_cast<float*>(stage + Tile::kXScales));
      }
      if (last && a_.has_bias) load_bias(stage + Tile::kBias);
      slot_ = slot_ + 1 == num_stages_ ? 0 : slot_ + 1;
      block_ += Tile::kBlocks;
      if (last) {
        number_ += gridDim.x;
        enter_tile();
      }
    }
    cp_async_commit();
  }

 private:
  static constexpr int kThreads = Tile::kThreads;
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  // A vector is 16 bytes. Codes: vectors of a panel, and panels that a thread copies from.
  static constexpr int kVectors = Tile::kBlocks * Tile::kBlockBytes / 16;
  static constexpr int kOwnPanels = Tile::kAllPanels * kVectors / kThreads;
  static constexpr int kPanelStep = kThreads / kVectors;  // between a thread's panels
  static_assert(kThreads % kVectors == 0 && (kOwnPanels == 1 || kOwnPanels % 2 == 0));
  // x: vectors of a row in a k-block, and of all rows; rows that a thread copies from, and its step
  // in k-blocks.
  static constexpr int kRowVectors = Tile::kXBlockBytes / 16;
  static constexpr int kXVectors = Tile::kRows * kRowVectors;
  static constexpr int kOwnRows = kXVectors > kThreads ? kXVectors / kThreads : 1;
  static constexpr int kBlockStep = kXVectors > kThreads ? 1 : kThreads / kXVectors;
  static_assert(kXVectors % kThreads == 0 || kThreads % kXVectors == 0);
  // Scales: 4 vectors for each group of a panel; groups that a thread copies from.
  static constexpr int kScaleRuns = Tile::kAllPanels * Tile::kGroups;
  static constexpr int kOwnRuns = (kScaleRuns * 4 + kThreads - 1) / kThreads;
  static_assert(Tile::kAllPanels * 4 <= kThreads);
  static_assert(kThreads % Tile::kRows == 0);

  __device__ void enter_tile() {
    tile_ = finder_.find(a_, number_, Tile::kRows, Tile::kAllPanels);
    if (thread() == 0) tiles_[at_] = tile_;
    at_ = at_ + 1 == kTileSlots ? 0 : at_ + 1;
    if (tile_.expert < 0) return;
    block_ = 0;
    expert_ = a_.base + tile_.expert * a_.expert_bytes;
    const TilePanels<Tile> panels(a_, tile_);
    const int first = thread() / kVectors;
    codes_ = expert_ + panels[first] * panel_bytes() + thread() % kVectors * 16;
    skipped_ = kOwnPanels > 1 ? panels.skipped * panel_bytes() : 0;
    own_panels_ = 0;
#pragma unroll
    for (int j = 0; j < kOwnPanels; ++j)
      own_panels_ |= panels.there(first + j * kPanelStep) ? 1u << j : 0u;
    const int vector =
        swizzled_vector<Operand>(thread() % kXVectors / kRowVectors, thread() % kRowVectors);
    x_at_ = thread() / kXVectors * Tile::kXBlockBytes + vector * 16;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int r = (thread() + i * kThreads) % kXVectors / kRowVectors;
      const bool there = r < tile_.rows;
      row_[i] = a_.x + (there ? source_of(r) * a_.x_stride : 0);
      row_bytes_[i] = there ? a_.x_bytes : 0;
    }
    if constexpr (Operand::kScaled) {
      // Past the last panel, read the last panel again; its results are discarded.
#pragma unroll
      for (int i = 0; i < kOwnRuns; ++i) {
        const int run = (thread() + i * kThreads) / 4;
        const int panel = panels[min(run / Tile::kGroups, Tile::kAllPanels - 1)];
        scale_at_[i] = int64_t{min(panel, a_.panels - 1)} * a_.weight_groups.count;
      }
    }
    if constexpr (Operand::kXScales != XScales::kNone) {
      const int r = thread() % Tile::kRows;
      x_scales_ = r < tile_.rows ? a_.x_scales + source_of(r) * a_.x_groups.count : nullptr;
    }
  }
  __device__ int64_t source_of(int r) const {
    const int row = tile_.first_row + r;
    return a_.row_index != nullptr ? a_.row_index[row] : row;
  }
  __device__ int64_t panel_bytes() const {
    return int64_t{a_.blocks} * Tile::kBlockBytes;
  }

  __device__ void load_codes(uint8_t* to) {
    const bool there = block_ + thread() % kVectors * 16 / Tile::kBlockBytes < a_.blocks;
    const int64_t step = kPanelStep * panel_bytes();
    const uint8_t* from = codes_;
#pragma unroll
    for (int j = 0; j < kOwnPanels; ++j, from += step) {
      if (kOwnPanels > 1 && j == kOwnPanels / 2) from += skipped_;
      cp_async_16(to + (thread() + j * kThreads) * 16, from, there && (own_panels_ >> j & 1u) != 0);
    }
    codes_ += Tile::kBlocks * Tile::kBlockBytes;
  }

  __device__ void load_x(uint8_t* to) {
    to += thread() * 16;
#pragma unroll
    for (int b = 0; b < Tile::kBlocks; b += kBlockStep) {
      // More threads than vectors: the last threads copy nothing.
      if (kBlockStep > Tile::kBlocks && thread() / kXVectors >= Tile::kBlocks) break;
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        const int at = x_at_ + b * Tile::kXBlockBytes;
        cp_async_16(to + (b * kXVectors + i * kThreads) * 16, row_[i] + at, at < row_bytes_[i]);
      }
    }
    x_at_ += Tile::kBlocks * Tile::kXBlockBytes;
  }
  __device__ void load_unaligned_x(uint8_t* to) {
    using Element = std::conditional_t<Operand::kXBytes == 2, uint16_t, uint8_t>;
    constexpr int kElements = 16 / Operand::kXBytes;
    for (int i = thread(); i < Tile::kBlocks * kXVectors; i += kThreads) {
      const int r = i % kXVectors / kRowVectors;
      const int at = (block_ + i / kXVectors) * Tile::kXBlockBytes +
                     swizzled_vector<Operand>(r, i % kRowVectors) * 16;
      const bool there = r < tile_.rows && at < a_.x_bytes;
      const auto* const from =
          reinterpret_cast<const Element*>(a_.x + (there ? source_of(r) * a_.x_stride + at : 0));
      for (int e = 0; e < kElements; ++e)
        reinterpret_cast<Element*>(to)[i * kElements + e] = there ? from[e] : Element{0};
    }
  }

  // Loads the scales, zero points and minimums of every group that the stage's k-blocks belong to.
  __device__ void load_scales(uint8_t* stage) {
    int first = 0, last = 0;
    if constexpr (Operand::kGroups) {
      const int end = min(block_ + Tile::kBlocks, a_.blocks);
      first = group_of(a_.weight_groups, block_ * Tile::kSubBlocks);
      // The last half of a row may have no columns.
      last =
          min(group_of(a_.weight_groups, end * Tile::kSubBlocks - 1), a_.weight_groups.count - 1);
    }
#pragma unroll
    for (int i = 0; i < kOwnRuns; ++i) {
      const int run = (thread() + i * kThreads) / 4, quarter = thread() % 4;
      const int group = first + run % Tile::kGroups;
      if (run >= kScaleRuns || group > last) continue;
      const int64_t at = (scale_at_[i] + group) * 16;
      const int to = run * 64 + quarter * 16;
      const uint8_t* const scales = expert_ + a_.scales_at;
      if (a_.scale_size == 4)
        cp_async_16(stage + Tile::kScales + to, scales + at * 4 + quarter * 16, true);
      else if (quarter == 0)
        cp_async_16(stage + Tile::kScales + to, scales + at, true);
      if constexpr (Operand::kZeros) {
        if (a_.has_zeros && quarter == 0)
          cp_async_16(stage + Tile::kZeros + run * 16, expert_ + a_.zeros_at + at, true);
      }
      if constexpr (Operand::kMinimums)
        cp_async_16(stage + Tile::kMinimums + to, expert_ + a_.minimums_at + at * 4 + quarter * 16,
                    true);
    }
  }

  __device__ void load_bias(uint8_t* to) {
    const int q = thread() / 4;
    const TilePanels<Tile> panels(a_, tile_);
    if (q >= Tile::kAllPanels || !panels.there(q)) return;
    const int64_t at = panels[q] * 64 + thread() % 4 * 16;
    cp_async_16(to + thread() * 16, expert_ + a_.bias_at + at, true);
  }

  __device__ void load_x_scales(float* to) {
    const bool one = Operand::kXScales == XScales::kToken;
    const int end = min(block_ + Tile::kBlocks, a_.blocks);
    const int first = one ? 0 : group_of(a_.x_groups, block_);
    const int last = one ? 0 : group_of(a_.x_groups, end - 1);
    for (int i = thread(); i < Tile::kXGroups * Tile::kRows; i += kThreads) {
      const int g = first + i / Tile::kRows;
      if (g > last) break;
      cp_async_4(to + i, x_scales_ != nullptr ? x_scales_ + g : a_.x_scales, x_scales_ != nullptr);
    }
  }

  const GemmArgs& a_;
  uint8_t* const stages_;
  const int num_stages_;
  WorkTile* const tiles_;
  TileFinder finder_;
  WorkTile tile_{};
  int64_t number_;
  int block_ = 0, slot_ = 0, at_ = 0;
  const uint8_t* expert_ = nullptr;
  // State of the copies of this thread. Codes: its first vector, a mask of its existing panels, and
  // the distance between the halves. x: its rows, the bytes of each row, and the current offset.
  // Scales: the offsets of a panel's scales, and the scales of x.
  const uint8_t* codes_ = nullptr;
  unsigned own_panels_ = 0;
  int64_t skipped_ = 0;
  const uint8_t* row_[kOwnRows] = {};
  int row_bytes_[kOwnRows] = {};
  int x_at_ = 0;
  int64_t scale_at_[kOwnRuns] = {};
  const float* x_scales_ = nullptr;
};

}  // namespace moracle::cuda
