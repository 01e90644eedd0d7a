// Weights on their way. Each warp has a ring of stages in shared memory, which it fills and reads
// by itself. A stage is 2 KiB of codes of each panel: 256 columns of 4 bits, 128 of 8, 64 of 16.
#pragma once

#include "kernels/cuda/decode/few_args.h"
#include "kernels/cuda/gemm_sm80/mma_loader.cuh"

namespace moracle::cuda {

inline constexpr int kFewPanelBytes = 2048;

/// k-blocks of a stage.
template <class Operand>
inline constexpr int kFewBlocks = kFewPanelBytes / mma16::block_bytes(Operand::kCodeBits);

/// kApart: a warp takes every kApart-th stage of a row. Its neighbours take those between, so that
/// a block reads long runs of memory.
template <class Operand, int kPanels, int kStages, int kApart>
class FewRing {
 public:
  __device__ FewRing(const FewArgs& args, uint8_t* memory)
      : args_(args),
        a_(args.matrix),
        first_(static_cast<uint32_t>(__cvta_generic_to_shared(memory))),
        memory_(memory),
        fill_(0),
        read_(0),
        end_(kStages * args.stage_bytes) {}

  /// The next stages come from these panels of an expert, from stage `step` of their rows on.
  __device__ void enter(const uint8_t* expert, const int (&panels)[kPanels], int step) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int panel_bytes = a_.blocks * mma16::block_bytes(Operand::kCodeBits);
    const int at = step * kFewPanelBytes + lane * 16;
    left_ = panel_bytes - at;
#pragma unroll
    for (int p = 0; p < kPanels; ++p) codes_[p] = expert + int64_t{panels[p]} * panel_bytes + at;
    step_ = step;
    if constexpr (Operand::kScaled) {
      const int p = kPanels > 1 ? lane / 16 : 0;
      const int panel = p == 0 ? panels[0] : panels[kPanels - 1];
      const int64_t group = int64_t{panel} * a_.weight_groups.count;
      scales_ =
          expert + a_.scales_at + group * 16 * (a_.scale_is_exponent ? 1 : 4) + lane % 16 * 16;
      if constexpr (Operand::kZeros) zeros_ = expert + a_.zeros_at + group * 16 + lane % 16 * 16;
    }
  }

  /// Starts to copy the next stage, or nothing if `there` is false. Every call is one batch.
  __device__ void fill(bool there) {
    if (there) {
      const int lane = static_cast<int>(threadIdx.x % 32);
      const uint32_t to = first_ + fill_ + lane * 16;
      const bool whole = left_ + lane * 16 >= kFewPanelBytes;  // the same in all lanes
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        if (whole) {
#pragma unroll
          for (int i = 0; i < kFewPanelBytes; i += 512)
            copy(to + p * kFewPanelBytes + i, codes_[p] + i);
        } else {
#pragma unroll
          for (int i = 0; i < kFewPanelBytes; i += 512)
            copy_or_clear(to + p * kFewPanelBytes + i, codes_[p] + i, i < left_);
        }
        codes_[p] += kApart * kFewPanelBytes;
      }
      left_ -= kApart * kFewPanelBytes;
      if constexpr (Operand::kScaled) fill_scales(lane);
      step_ += kApart;
      fill_ = fill_ + args_.stage_bytes == end_ ? 0 : fill_ + args_.stage_bytes;
    }
    end_batch();
  }

  /// Waits for the oldest stage that was not read yet. After this, the stage read before may be
  /// filled again.
  __device__ const uint8_t* next() {
    wait_for_batches<kStages - 2>();
    __syncwarp();
    const uint8_t* const stage = memory_ + read_;
    read_ = read_ + args_.stage_bytes == end_ ? 0 : read_ + args_.stage_bytes;
    return stage;
  }

 private:
  __device__ static void copy(uint32_t to, const uint8_t* from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
  }
  __device__ static void copy_or_clear(uint32_t to, const uint8_t* from, bool there) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
#endif
  }
  // Copies only where `wanted`, without a branch.
  __device__ static void copy_if(bool wanted, uint32_t to, const uint8_t* from) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %0, 0; @p cp.async.cg.shared.global [%1], [%2], 16; }" ::
            "r"(static_cast<unsigned>(wanted)),
        "r"(to), "l"(from)
        : "memory");
#endif
  }

  // A panel's scales, then its zero points, of all groups that the stage belongs to. Lanes of each
  // half copy those of one panel.
  __device__ void fill_scales(int lane) {
    const int piece = lane % 16 * 16, p = kPanels > 1 ? lane / 16 : 0;
    const bool own = kPanels > 1 || lane < 16;
    const int group = group_of(a_.weight_groups, step_ * kFewBlocks<Operand>);
    const uint32_t to = first_ + fill_ + kPanels * kFewPanelBytes +
                        p * (args_.scale_bytes + args_.zero_bytes) + piece;
    // The last stage of a row may have fewer groups; no warp reads the others.
    const int groups = a_.weight_groups.count - group, size = a_.scale_is_exponent ? 16 : 64;
    const int end = min(args_.scale_bytes, groups * size);
    copy_if(own && piece < end, to, scales_ + group * size);
    if constexpr (Operand::kCodeBits == 4)
      copy_if(own && piece + 256 < end, to + 256, scales_ + group * size + 256);
    if constexpr (Operand::kZeros) {
      copy_if(own && piece < min(args_.zero_bytes, groups * 16), to + args_.scale_bytes,
              zeros_ + group * 16);
    }
  }

  const FewArgs& args_;
  const MmaArgs& a_;
  const uint32_t first_;
  uint8_t* const memory_;
  int fill_, read_, end_;  // offsets
  int left_ = 0, step_ = 0;
  const uint8_t* codes_[kPanels] = {};
  const uint8_t *scales_ = nullptr, *zeros_ = nullptr;
};

}  // namespace moracle::cuda
