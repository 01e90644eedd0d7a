// A consumer warpgroup: its accumulators, and the steps that its mainloops consist of.
#pragma once

#include "kernels/cuda/gemm_sm90/wgmma_args.h"
#include "kernels/cuda/gemm_sm90/wgmma_tile.cuh"
#include "kernels/cuda/operands/unpack.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/tiles/groups.cuh"

namespace moracle::cuda {

template <class Operand_, class Tile_, int kN_>
class WgmmaConsumer {
 public:
  using Operand = Operand_;
  using Tile = Tile_;
  using Sum = typename Operand::Sum;
  static constexpr int kN = kN_, kM = Tile::kM, kBlocks = Tile::kBlocks;
  /// First operand of an m64 and a unit of K.
  using Weights = uint32_t[Operand::kTerms][Operand::kSteps][4];

  __device__ WgmmaConsumer(const WgmmaArgs& args, const WgmmaShared<Tile>& shared,
                           RingSlot<Tile>& ring)
      : own{args}, a_(args), shared_(shared), ring_(ring) {}

  const OwnBlocks<Tile> own;
  Sum total[kM][kN / 2];

  /// The current stage, its slot, and the descriptor of its x.
  __device__ const uint8_t* stage() const { return shared_.stage(ring_.slot); }
  __device__ int slot() const { return ring_.slot; }
  __device__ uint64_t descriptor() const { return swizzled_descriptor(shared_address(stage())); }
  /// Reads the first octet of rows of x, k-block b, as the second operand of mma.sync.
  __device__ __forceinline__ void load_octet(const uint8_t* stage, int b, uint32_t (&to)[4]) const {
    const int lane = static_cast<int>(threadIdx.x % 32), row = lane % 8;
    const int vector = b % 2 * 4 + lane / 8;  // of eight columns, in the atom
    ldmatrix_x4(to, stage + b / 2 * Tile::kAtomBytes + row * 128 + ((vector ^ row) << 4));
  }
  /// Goes to the tile's next stage, if there is one. Otherwise unpack the last stage once more and
  /// discard the result: cheaper than a branch around products in flight.
  __device__ void next_stage(int first) {
    if (first + kBlocks >= own.end()) return;
    ring_.advance();
    mbarrier_wait(shared_.full(ring_.slot), ring_.parity);
  }
  /// Gives a slot back to the producer.
  __device__ void release(int slot) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_.empty(slot));
  }
  /// Goes past the last stage of the tile, whose slot is released.
  __device__ void end_tile() { ring_.advance(); }
  __device__ const WgmmaArgs& args() const { return a_; }

  /// Unpacks unit b of m64 m. `group` is the index of the group in the stage.
  __device__ __forceinline__ void unpack(const uint8_t* stage, int m, int b, int group,
                                         Weights& to) {
    constexpr int kUnitBytes = Tile::kBlockBytes / Operand::kUnits;
    uint32_t codes[kUnitBytes / 128];
    read_codes<Operand::kCodeBits>(
        stage + Tile::kCodes + panel(m) * Tile::kPanelBytes + b * kUnitBytes, codes);
    if constexpr (Operand::kValues) {
      float2 minimums{0, 0};
      if (a_.has_minimums)
        minimums = reinterpret_cast<const float2*>(stage + Tile::kMinimums +
                                                   run(m, group) * 64)[lane_row()];
      Operand::weights(codes, weight_scale(stage, m, group), minimums, to);
    } else {
      unpack_codes(stage, m, group, codes, to);
    }
  }
  template <int kWords>
  __device__ __forceinline__ void unpack_codes(const uint8_t* stage, int m, int group,
                                               const uint32_t (&codes)[kWords], Weights& to) {
    uint32_t zero[2] = {};
    if constexpr (Operand::kFolded) {
      Operand::factors(stage + Tile::kScales + run(m, group) * 16 + 2 * lane_row(), zero);
    } else if constexpr (Operand::kZeros) {
      zero[0] = zero_[m][0], zero[1] = zero_[m][1];
    }
    Operand::weights(codes, zero, to);
  }

  /// Scales of a lane's two rows for a stage of one m64. Where they move into the codes: how far
  /// each k-block's lie below the largest, in bytes of the table, in halves.
  struct StageScales {
    float2 scale;
    uint32_t downs[kIsRebased<Operand> ? kBlocks : 1];
  };
  __device__ __forceinline__ StageScales stage_scales(const uint8_t* stage, int m) const {
    StageScales all;
    if constexpr (kIsRebased<Operand>) {
      // Groups past the end of a row have exponent 0.
      uint32_t largest = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const uint32_t two = *reinterpret_cast<const uint16_t*>(stage + Tile::kScales +
                                                                run(m, b) * 16 + 2 * lane_row());
        all.downs[b] = __byte_perm(two, 0, 0x4140);
        largest = max_u16x2(largest, all.downs[b]);
      }
      constexpr uint32_t kLast = 8 * (kE2m1Downs - 1);
#pragma unroll
      for (uint32_t& downs : all.downs)
        downs = min_u16x2((largest - downs) << 3, kLast << 16 | kLast);
      all.scale = {exponent_value(largest & 0xffffu), exponent_value(largest >> 16)};
    } else {
      all.scale = weight_scale(stage, m, 0);
    }
    return all;
  }
  /// Unpacks k-block b of a stage of one m64, and before the first its zero points.
  __device__ __forceinline__ void unpack_scaled(const uint8_t* stage, int m, int b,
                                                const StageScales& scales, Weights& to) {
    if constexpr (kIsRebased<Operand>) {
      uint32_t codes[2];
      read_codes<4>(stage + Tile::kCodes + panel(m) * Tile::kPanelBytes + b * Tile::kBlockBytes,
                    codes);
      const auto* const table = reinterpret_cast<const uint8_t*>(shared_.table());
      const uint2 words[2] = {*reinterpret_cast<const uint2*>(table + (scales.downs[b] & 0xffffu)),
                              *reinterpret_cast<const uint2*>(table + (scales.downs[b] >> 16))};
      Operand::weights(codes, words, to);
    } else {
      prepare(stage, m, b, 0, kBlocks, to);
    }
  }

  /// Issues the products of unit b with as many rows as `sum` holds.
  template <int kCount>
  __device__ __forceinline__ void multiply(Sum (&sum)[kCount], const Weights& w, uint64_t x, int b,
                                           bool add) {
#pragma unroll
    for (int s = 0; s < Operand::kSteps; ++s) {
      const int at = (b * Operand::kSteps + s) * 32;  // bytes of a row
      const uint64_t step = (at / 128 * Tile::kAtomBytes + at % 128) / 16;
#pragma unroll
      for (int term = 0; term < Operand::kTerms; ++term)
        wgmma<Operand::kProducts, 2 * kCount>(sum, w[term][s], x + step, add || s > 0 || term > 0);
    }
  }
  /// Index in the stage of the group of a lane's columns of unit b, where scales are folded.
  __device__ int folded_group(int first, int b) const {
    if constexpr (kHasRowFactors<Operand>) return 2 * b + lane_col() / 2;
    if constexpr (Operand::kValues) {
      // Past the end of a row any group will do: codes and x are zero.
      const int sub_block =
          min(first + b, a_.blocks - 1) * a_.sub_blocks + (a_.sub_blocks > 1 ? lane_col() / 2 : 0);
      return group_of(a_.weight_groups, sub_block) -
             group_of(a_.weight_groups, first * a_.sub_blocks);
    }
    if constexpr (!Operand::kFolded) return 0;
    if (a_.weight_groups.blocks == 1) return b;
    return group_of(a_.weight_groups, first + b) - group_of(a_.weight_groups, first);
  }

  /// Index in the stage of the group of k-block b, where `chunk` k-blocks share one.
  __device__ __forceinline__ int group_at(int first, int b, int chunk) const {
    if (Operand::kBlockGroups) return b;
    if (chunk == kBlocks || !Operand::kGroups) return 0;
    return group_of(a_.weight_groups, min(first + b, a_.blocks - 1)) -
           group_of(a_.weight_groups, first);
  }
  /// Unpacks a k-block, and at a chunk's begin its zero points.
  __device__ __forceinline__ void prepare(const uint8_t* stage, int m, int b, int first, int chunk,
                                          Weights& to) {
    if constexpr (Operand::kZeros) {
      if (b % chunk == 0) {
        zero_[m][0] = zero_[m][1] = Operand::both(Operand::kZeroBase);
        if (a_.has_zeros) {
          const auto* const two = reinterpret_cast<const int8_t*>(
              stage + Tile::kZeros + run(m, group_at(first, b, chunk)) * 16 + 2 * lane_row());
#pragma unroll
          for (int h = 0; h < 2; ++h) zero_[m][h] = Operand::both(Operand::kZeroBase + two[h]);
        }
      }
    }
    unpack(stage, m, b, 0, to);
  }
  /// Scales of a lane's two rows.
  __device__ float2 weight_scale(const uint8_t* stage, int m, int group) const {
    const uint8_t* const scales = stage + Tile::kScales + run(m, group) * Tile::kScaleBytes;
    return reinterpret_cast<const float2*>(scales)[lane_row()];
  }
  /// Adds scaled sums of the rows from `begin` on to the totals.
  template <int kCount>
  __device__ __forceinline__ void promote(int m, int begin, const Sum (&partial)[kCount],
                                          const uint8_t* stage, float2 scale) {
    Sum(&to)[kN / 2] = total[m];
    if constexpr (Operand::kXScales == XScales::kGroup) {
      const auto* const x =
          reinterpret_cast<const float2*>(stage + Tile::kXScales) + begin / 2 + lane_col();
#pragma unroll
      for (int o = 0; o < kCount / 4; ++o) {
        const float2 two = x[o * 4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          to[begin / 2 + o * 4 + i] +=
              partial[o * 4 + i] * (i % 2 == 0 ? two.x : two.y) * (i < 2 ? scale.x : scale.y);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if constexpr (Operand::kGroups)
          to[begin / 2 + i] += partial[i] * (i % 4 < 2 ? scale.x : scale.y);
        else
          to[begin / 2 + i] += partial[i];
      }
    }
  }

 private:
  // e8m0_to_float without branches.
  __device__ static float exponent_value(uint32_t exponent) {
    const uint32_t bits = max(exponent << 23, 1u << 22);
    return __uint_as_float(exponent == 255 ? bits | 1u << 22 : bits);
  }
  __device__ static int panel(int m) {
    return m * Tile::kHalf + static_cast<int>(threadIdx.x / 32);
  }
  // Offset in the stage of the 16 scales of a panel's group.
  __device__ int run(int m, int group) const {
    return panel(m) * (Operand::kBlockGroups ? kBlocks : a_.tma.groups) + group;
  }

  const WgmmaArgs& a_;
  const WgmmaShared<Tile>& shared_;
  RingSlot<Tile>& ring_;
  uint32_t zero_[kM][2] = {};  // of the current chunk of each m64
};

}  // namespace moracle::cuda
