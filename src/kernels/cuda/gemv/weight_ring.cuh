// Ring of pipeline stages of weights. Each warp has a ring in shared memory, which it fills with
// TMA and reads by itself. A stage is 2 KiB of codes of each panel: 256 columns of 4 bits, 128 of
// 8, 64 of 16; where sums end every 16 columns it is half as much. Copies of 16 bytes by every lane
// read memory 10 % slower in runs as short as these (H200).
#pragma once

#include "kernels/cuda/gemv/gemv_args.h"
#include "kernels/cuda/operands/mma_operands.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/tiles/groups.cuh"
#include "layout/mma16_block.h"

namespace moracle::cuda {

/// Bytes of codes of a panel in a stage, and k-blocks of a stage, as gemv_stage_blocks.
template <class Operand>
inline constexpr int kStagePanelBytes = Operand::kHalves ? 1024 : 2048;
template <class Operand>
inline constexpr int kStageBlocks = kStagePanelBytes<Operand> /
                                    mma16::block_bytes(Operand::kCodeBits);

/// Barriers of the stages of each warp.
template <int kWarps>
struct RingBarriers {
  uint64_t of_warp[kWarps][kMostRingStages];
};

/// Returns the ring of a warp. `rings`: of all warps.
__device__ inline uint8_t* ring_of_warp(const GemvArgs& args, uint8_t* rings, int warp) {
  return rings + warp * args.stages * args.stage_bytes;
}

/// A warp takes every `apart`-th stage of a row. Its neighbours take those between, so that
/// a CTA reads long runs of memory. A lane copies the codes, scales, or zero points or minimums
/// of one panel.
template <class Operand, int kPanels>
class WeightRing {
 public:
  /// `rings`: of all warps.
  template <int kWarps>
  __device__ WeightRing(const GemvArgs& args, uint8_t* rings, RingBarriers<kWarps>& barriers,
                        int apart)
      : args_(args),
        a_(args.matrix),
        apart_(apart),
        memory_(ring_of_warp(args, rings, static_cast<int>(threadIdx.x / 32))),
        barriers_(shared_address(barriers.of_warp[threadIdx.x / 32])),
        section_(lane() / kPanels) {
    const int sections = 1 + (args.scale_bytes > 0) + (args.zero_bytes > 0);
    copies_ = lane() < kPanels * sections;
    at_ = lane() % kPanels * kPanelBytes;
    if (section_ > 0)
      at_ = kPanels * kPanelBytes + lane() % kPanels * (args.scale_bytes + args.zero_bytes) +
            (section_ > 1 ? args.scale_bytes : 0);
    constexpr int kZeroSize = Operand::kMinimums ? 64 : 16;
    scale_size_ = section_ > 1 ? kZeroSize : a_.scale_size * 16;
    most_bytes_ = section_ == 0 ? kPanelBytes : section_ == 1 ? args.scale_bytes : args.zero_bytes;
    if (lane() < args.stages) mbarrier_init(barriers_ + lane() * 8, kPanels * sections);
    mbarrier_init_fence();
    __syncwarp();
  }

  /// Sets the panels for the next stages: of one expert, from stage `step` of their rows on.
  __device__ void enter(const uint8_t* expert, const int (&panels)[kPanels], int step) {
    const int panel = kPanels == 1 || lane() % kPanels == 0 ? panels[0] : panels[kPanels - 1];
    const int row_bytes = a_.blocks * mma16::block_bytes(Operand::kCodeBits);
    step_ = step;
    from_ = expert + int64_t{panel} * row_bytes;
    if (Operand::kScaled && section_ > 0)
      from_ = expert +
              (section_ < 2         ? a_.scales_at
               : Operand::kMinimums ? a_.minimums_at
                                    : a_.zeros_at) +
              int64_t{panel} * a_.weight_groups.count * scale_size_;
  }

  /// Starts to copy the next stage if `there`, with its scales if `scales`.
  __device__ void fill(bool there, bool scales) {
    if (!there) return;
    const int row_bytes = a_.blocks * mma16::block_bytes(Operand::kCodeBits);
    int first = step_ * kPanelBytes, left = row_bytes - first;
    // Codes are padded to whole k-blocks, scales are not.
    const bool lacks_scales =
        kHasRowFactors<Operand> &&
        (step_ + 1) * kStageBlocks<Operand> * kSubBlocks > a_.weight_groups.count;
    if (left < kPanelBytes || lacks_scales) clear_rest(min(left, kPanelBytes));
    if (copies_) {
      if (Operand::kScaled && section_ > 0) {
        // The last stage of a row may have fewer groups; the others are cleared, or no warp reads
        // them.
        const int group = group_of(a_.weight_groups, step_ * kStageBlocks<Operand> * kSubBlocks);
        first = group * scale_size_;
        left = scales ? a_.weight_groups.count * scale_size_ - first : 0;
      }
      copy(fill_, from_ + first, min(left, most_bytes_));
    }
    step_ += apart_;
    fill_ = fill_ + 1 == args_.stages ? 0 : fill_ + 1;
  }

  /// Waits for the oldest unread stage. The stage that was read before it may then be refilled.
  __device__ const uint8_t* next() {
    mbarrier_wait(barriers_ + read_ * 8, phase_);
    __syncwarp();
    const uint8_t* const stage = memory_ + read_ * args_.stage_bytes;
    if (++read_ == args_.stages) read_ = 0, phase_ ^= 1;
    return stage;
  }

 private:
  static constexpr int kPanelBytes = kStagePanelBytes<Operand>;
  static constexpr int kSubBlocks = Operand::kHalves || kHasRowFactors<Operand> ? 2 : 1;
  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  __device__ void copy(int slot, const uint8_t* from, int bytes) const {
    const uint32_t barrier = barriers_ + slot * 8;
    mbarrier_arrive_expect_tx(barrier, bytes);
    if (bytes == 0) return;
    tma_load_bytes(shared_address(memory_) + slot * args_.stage_bytes + at_, from, bytes, barrier);
  }

  // Clears the bytes and scales of a stage past the end of a row: zeros of x times infinity would
  // give NaN.
  __device__ void clear_rest(int bytes) {
    uint8_t* const stage = memory_ + fill_ * args_.stage_bytes;
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      const int end = p + 1 < kPanels ? (p + 1) * kPanelBytes : args_.stage_bytes;
      for (int i = p * kPanelBytes + bytes + lane() * 16; i < end; i += 512)
        *reinterpret_cast<uint4*>(stage + i) = uint4{};
    }
    // Later TMA loads to the same place come after these stores.
    fence_async_proxy();
    __syncwarp();
  }

  const GemvArgs& args_;
  const GemmArgs& a_;
  const int apart_;
  uint8_t* const memory_;
  const uint32_t barriers_;
  const int section_;  // of this lane: codes, scales, or zero points or minimums
  bool copies_;
  int at_, scale_size_, most_bytes_;  // in a stage; of a group; in a stage at most
  int fill_ = 0, read_ = 0, step_ = 0;
  uint32_t phase_ = 0;
  const uint8_t* from_ = nullptr;
};

}  // namespace moracle::cuda
