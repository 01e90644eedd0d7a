// What the mainloops of a computing warpgroup share: they unpack weights of a stage, issue
// products, promote sums, and pass from stage to stage.
#pragma once

#include "kernels/cuda/gemm_sm80/mma_sums.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_args.h"
#include "kernels/cuda/gemm_sm90/wgmma_tile.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace moracle::cuda {

template <class Operand, class Tile, int kN>
class WgmmaStage {
 public:
  using Sum = typename Operand::Sum;

  __device__ WgmmaStage(const WgmmaArgs& args, const WgmmaShared<Tile>& shared,
                        RingSlot<Tile>& ring)
      : a_(args), own_{args}, shared_(shared), ring_(ring) {}

  Sum total[Tile::kM][kN / 2];

 protected:
  static constexpr int kBlocks = Tile::kBlocks, kM = Tile::kM;
  using Weights = uint32_t[Operand::kParts][Operand::kSteps][4];

  __device__ static int panel(int m) {
    return m * Tile::kHalf + static_cast<int>(threadIdx.x / 32);
  }

  // Place in a stage of the 16 scales of a panel's group.
  __device__ int run(int m, int group) const { return panel(m) * a_.boxes.groups + group; }

  // Unpacks unit b of m64 m. `group` is the group's place in the stage.
  __device__ __forceinline__ void unpack(const uint8_t* stage, int m, int b, int group,
                                         Weights& to) {
    constexpr int kUnitBytes = Tile::kBlockBytes / Operand::kUnits;
    uint32_t codes[kUnitBytes / 128];
    read_codes<Operand::kCodeBits>(
        stage + Tile::kCodes + panel(m) * Tile::kPanelBytes + b * kUnitBytes, codes);
    uint32_t zero[2] = {};
    if constexpr (Operand::kFolded) {
      const uint32_t two = *reinterpret_cast<const uint16_t*>(stage + Tile::kScales +
                                                              run(m, group) * 16 + 2 * lane_row());
      zero[0] = Operand::factor(two & 0xffu), zero[1] = Operand::factor(two >> 8);
    } else if constexpr (Operand::kZeros) {
      zero[0] = zero_[0], zero[1] = zero_[1];
    }
    Operand::weights(codes, zero, to);
  }

  // Issues the products of a batch.
  template <int kWidth = kN>
  __device__ __forceinline__ void multiply(Sum (&sum)[kWidth / 2], const Weights& w, uint64_t x,
                                           int b, bool add) {
#pragma unroll
    for (int s = 0; s < Operand::kSteps; ++s) {
      const int at = (b * Operand::kSteps + s) * 32;  // bytes of a row
      const uint64_t step = (at / 128 * Tile::kAtomBytes + at % 128) / 16;
#pragma unroll
      for (int part = 0; part < Operand::kParts; ++part)
        wgmma<Operand::kProducts, kWidth>(sum, w[part][s], x + step, add || s > 0 || part > 0);
    }
  }
  __device__ uint64_t descriptor() const {
    return swizzled_descriptor(shared_address(shared_.stage(ring_.slot)));
  }
  __device__ void wait_for_stage() const {
    mbarrier_wait(shared_.full(ring_.slot), ring_.parity);
  }
  // Goes to the tile's next stage, if there is one. Otherwise the last stage is unpacked once more,
  // without use: cheaper than a branch around products in flight.
  __device__ void next_stage(int first) {
    if (first + kBlocks >= own_.end()) return;
    ring_.advance();
    wait_for_stage();
  }
  __device__ void release(int slot) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_.empty(slot));
  }

  __device__ int folded_group(int first, int b) const {
    if constexpr (!Operand::kFolded) return 0;
    if (a_.weight_groups.blocks == 1) return b;
    return group_of(a_.weight_groups, first + b) - group_of(a_.weight_groups, first);
  }

  // Place of k-block b's group in a stage.
  template <int kChunk>
  __device__ int group_at(int first, int b) const {
    if constexpr (kChunk == kBlocks || !Operand::kGroups) return 0;
    return group_of(a_.weight_groups, min(first + b, a_.blocks - 1)) -
           group_of(a_.weight_groups, first);
  }
  // Unpacks a k-block, and at a chunk's begin its zero points.
  template <int kChunk>
  __device__ __forceinline__ void prepare(const uint8_t* stage, int m, int b, int first,
                                          Weights& to) {
    if constexpr (Operand::kZeros) {
      if (b % kChunk == 0) {
        zero_[0] = zero_[1] = both_bf16(Operand::kZeroBase);
        if (a_.has_zeros) {
          const auto* const two = reinterpret_cast<const int8_t*>(
              stage + Tile::kZeros + run(m, group_at<kChunk>(first, b)) * 16 + 2 * lane_row());
#pragma unroll
          for (int h = 0; h < 2; ++h) zero_[h] = both_bf16(Operand::kZeroBase + two[h]);
        }
      }
    }
    unpack(stage, m, b, 0, to);
  }
  // Scales of a lane's two rows.
  __device__ float2 weight_scale(const uint8_t* stage, int m, int group) const {
    const uint8_t* const scales = stage + Tile::kScales + run(m, group) * Tile::kScaleBytes;
    return reinterpret_cast<const float2*>(scales)[lane_row()];
  }
  // Adds scaled sums of the rows from kBegin on.
  template <int kBegin, int kCount>
  __device__ __forceinline__ void promote(int m, const Sum (&part)[kCount], const uint8_t* stage,
                                          float2 scale) {
    Sum(&to)[kN / 2] = total[m];
    if constexpr (Operand::kXScales == XScales::kGroup) {
      const auto* const x =
          reinterpret_cast<const float2*>(stage + Tile::kXScales) + kBegin / 2 + lane_col();
#pragma unroll
      for (int o = 0; o < kCount / 4; ++o) {
        const float2 two = x[o * 4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          to[kBegin / 2 + o * 4 + i] +=
              part[o * 4 + i] * (i % 2 == 0 ? two.x : two.y) * (i < 2 ? scale.x : scale.y);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if constexpr (Operand::kGroups)
          to[kBegin / 2 + i] += part[i] * (i % 4 < 2 ? scale.x : scale.y);
        else
          to[kBegin / 2 + i] += part[i];
      }
    }
  }

  const WgmmaArgs& a_;
  const OwnBlocks<Tile> own_;
  const WgmmaShared<Tile>& shared_;
  RingSlot<Tile>& ring_;
  uint32_t zero_[2] = {};
};

}  // namespace moracle::cuda
