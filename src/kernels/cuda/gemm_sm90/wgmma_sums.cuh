// Mainloop of a computing warpgroup: the sums of one tile. A batch is a unit (a k-block, or half
// of one) of one or all m64 of the warpgroup. While a batch is multiplied, the next one is unpacked
// into other registers. Each sum accumulates the columns in order, independent of the neighbouring
// rows and of kN.
#pragma once

#include "kernels/cuda/gemm_sm80/mma_sums.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_args.h"
#include "kernels/cuda/gemm_sm90/wgmma_tile.cuh"

namespace moracle::cuda {

template <class Operand, class Tile, int kN>
class WgmmaSums {
 public:
  using Sum = typename Operand::Sum;

  __device__ WgmmaSums(const WgmmaArgs& args, const WgmmaShared<Tile>& shared, RingSlot<Tile>& ring)
      : a_(args), shared_(shared), ring_(ring) {}

  /// Multiplies all stages of a tile. The first one is full.
  __device__ __forceinline__ void run() {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) total[m][i] = 0;
    }
    constexpr bool kFew = Tile::kRows <= 64 && kM == 2;
    if constexpr (!Operand::kPromoted)
      run_straight();
    else if constexpr (!Operand::kSmallGroups && kFew)
      run_chunks();
    else if constexpr (!Operand::kSmallGroups)
      run_halves();
    else if (a_.close_blocks % kBlocks != 0 && a_.close_blocks < a_.blocks)
      run_promoted<1>();
    else if constexpr (kFew)
      run_chunks();
    else
      run_promoted<kBlocks>();
  }

  Sum total[Tile::kM][kN / 2];

 private:
  static constexpr int kBlocks = Tile::kBlocks, kM = Tile::kM;
  // m64 of a batch: all where registers allow.
  static constexpr int kBatch = !Operand::kPromoted && kM * kN <= 256 ? kM : 1;
  static constexpr int kSplit = kM / kBatch;  // batches of a k-block
  static constexpr int kStageUnits = kBlocks * Operand::kUnits;
  static constexpr int kBatches = kStageUnits * kSplit;  // of a stage
  static_assert(kBatches % 2 == 0);                      // the same registers begin each stage
  using Weights = uint32_t[Operand::kParts][Operand::kSteps][4];

  __device__ static int panel(int m) {
    return m * Tile::kHalf + static_cast<int>(threadIdx.x / 32);
  }

  // Place in a stage of the 16 scales of a panel's group.
  __device__ int run(int m, int group) const {
    return panel(m) * a_.boxes.groups + group;
  }

  // Unpacks unit b of m64 m. `group` is the group's place in the stage.
  __device__ __forceinline__ void unpack(const uint8_t* stage, int m, int b, int group,
                                         Weights& to) {
    constexpr int kUnitBytes = Tile::kBlockBytes / Operand::kUnits;
    uint32_t codes[kUnitBytes / 128];
    read_words(stage + Tile::kCodes + panel(m) * Tile::kPanelBytes + b * kUnitBytes +
                   static_cast<int>(threadIdx.x % 32) * (kUnitBytes / 32),
               codes);
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
    return row_descriptor(shared_address(shared_.stage(ring_.slot)));
  }
  __device__ void wait_for_stage() const {
    wait_for(shared_.full(ring_.slot), ring_.parity);
  }
  // Goes to the tile's next stage, if there is one. Otherwise the last stage is unpacked once more,
  // without use: cheaper than a branch around products in flight.
  __device__ void next_stage(int first) {
    if (first + kBlocks >= a_.blocks) return;
    ring_.advance();
    wait_for_stage();
  }
  __device__ void release(int slot) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared_.empty(slot));
  }

  __device__ int folded_group(int first, int b) const {
    if constexpr (!Operand::kFolded) return 0;
    if (a_.weight_groups.blocks == 1) return b;
    return group_of(a_.weight_groups, first + b) - group_of(a_.weight_groups, first);
  }

  // Sums stay in the instruction's registers.
  __device__ __forceinline__ void run_straight() {
    Weights w[2][kBatch];
#pragma unroll
    for (int m = 0; m < kBatch; ++m)
      unpack(shared_.stage(ring_.slot), m, 0, folded_group(0, 0), w[0][m]);
    for (int first = 0; first < a_.blocks; first += kBlocks) straight_stage(w, first);
    wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < kM; ++m) pin(total[m]);
    release(ring_.slot);
    ring_.advance();
  }
  __device__ __forceinline__ void straight_stage(Weights (&w)[2][kBatch], int first) {
    const uint64_t x = descriptor();
    const uint8_t* const stage = shared_.stage(ring_.slot);
    const int slot = ring_.slot;
#pragma unroll
    for (int i = 0; i < kBatches; ++i) {
      const int b = i / kSplit, begin = i % kSplit * kBatch;
      wgmma_fence();
#pragma unroll
      for (int m = 0; m < kBatch; ++m) multiply(total[begin + m], w[i % 2][m], x, b, true);
      wgmma_commit();
      if (i + 1 < kBatches) {
        wgmma_wait<1>();
        if (i == 0 && first > 0) release(slot == 0 ? Tile::kStages - 1 : slot - 1);
        const int next = (i + 1) / kSplit, next_m = (i + 1) % kSplit * kBatch;
#pragma unroll
        for (int m = 0; m < kBatch; ++m)
          unpack(stage, next_m + m, next, folded_group(first, next), w[(i + 1) % 2][m]);
      } else {
        next_stage(first);
        wgmma_wait<1>();
#pragma unroll
        for (int m = 0; m < kBatch; ++m)
          unpack(shared_.stage(ring_.slot), m, 0, folded_group(first + kBlocks, 0), w[0][m]);
      }
    }
  }

  // Few rows: a chunk is a stage of one m64. The next chunk is unpacked while one is multiplied,
  // and the previous one is promoted while the next is multiplied. After the last chunk the
  // products of its stage are issued once more, without use.
  __device__ __forceinline__ void run_chunks() {
    Weights w[2][kBlocks];
    Sum part[2][kN / 2];
    unpack_chunk(shared_.stage(ring_.slot), 0, w[0]);
    multiply_chunk(part[0], w[0], descriptor());
    int used = -1;
    for (int first = 0; first < a_.blocks; first += kBlocks) {
      const uint64_t x = descriptor();
      const uint8_t* const stage = shared_.stage(ring_.slot);
      unpack_chunk(stage, 1, w[1]);
      const float2 scales[2] = {chunk_scale(stage, 0), chunk_scale(stage, 1)};
      wgmma_wait<0>();
      pin(part[0]);
      if (used >= 0) release(used);
      multiply_chunk(part[1], w[1], x);
      promote<0>(0, part[0], stage, scales[0]);
      used = ring_.slot;
      next_stage(first);
      unpack_chunk(shared_.stage(ring_.slot), 0, w[0]);
      wgmma_wait<0>();
      pin(part[1]);
      multiply_chunk(part[0], w[0], descriptor());
      promote<0>(1, part[1], stage, scales[1]);
    }
    wgmma_wait<0>();
    pin(part[0]);
    release(ring_.slot);
    ring_.advance();
  }
  __device__ __forceinline__ void unpack_chunk(const uint8_t* stage, int m, Weights (&w)[kBlocks]) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) prepare<kBlocks>(stage, m, b, 0, w[b]);
  }
  __device__ float2 chunk_scale(const uint8_t* stage, int m) const {
    if constexpr (Operand::kGroups) return weight_scale(stage, m, 0);
    return {1, 1};
  }
  // Issues a chunk's products with kWidth rows.
  template <int kWidth>
  __device__ __forceinline__ void multiply_chunk(Sum (&part)[kWidth], Weights (&w)[kBlocks],
                                                 uint64_t x) {
    wgmma_fence();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) multiply<2 * kWidth>(part, w[b], x, b, b > 0);
    wgmma_commit();
  }

  // Many rows, and codes that need no unpacking: one half of the rows is promoted while the other
  // half is multiplied.
  __device__ __forceinline__ void run_halves() {
    constexpr uint64_t kHalf = kN / 2 * 128 / 16;  // to the second half of x
    Weights w[kBlocks];
    Sum part[2][kN / 4];
    unpack_chunk(shared_.stage(ring_.slot), 0, w);
    multiply_chunk(part[0], w, descriptor());
    int used = -1;
    for (int first = 0; first < a_.blocks; first += kBlocks) {
      const uint8_t* const stage = shared_.stage(ring_.slot);
      const uint64_t x = descriptor();
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const float2 scale = chunk_scale(stage, m);
        wgmma_wait<0>();
        pin(part[0]);
        if (m == 0 && used >= 0) release(used);
        multiply_chunk(part[1], w, x + kHalf);
        promote<0>(m, part[0], stage, scale);
        if (m == kM - 1) {
          used = ring_.slot;
          next_stage(first);
        }
        wgmma_wait<0>();
        pin(part[1]);
        unpack_chunk(shared_.stage(ring_.slot), (m + 1) % kM, w);
        multiply_chunk(part[0], w, descriptor());
        promote<kN / 2>(m, part[1], stage, scale);
      }
    }
    wgmma_wait<0>();
    pin(part[0]);
    release(ring_.slot);
    ring_.advance();
  }

  // Sums of kChunk k-blocks are scaled and added to totals.
  template <int kChunk>
  __device__ __forceinline__ void run_promoted() {
    Weights w[2];
    prepare<kChunk>(shared_.stage(ring_.slot), 0, 0, 0, w[0]);
    for (int first = 0; first < a_.blocks; first += kBlocks) promoted_stage<kChunk>(w, first);
    ring_.advance();
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
  template <int kChunk>
  __device__ __forceinline__ void promoted_stage(Weights (&w)[2], int first) {
    const uint64_t x = descriptor();
    const uint8_t* const stage = shared_.stage(ring_.slot);
    const int slot = ring_.slot;
    // With few rows memory is the bottleneck: promote before waiting for the next stage.
    constexpr bool kAhead = kN >= 64;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      Sum part[kN / 2];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int i = m * kBlocks + b, next = i + 1;
        const bool ends = b % kChunk == kChunk - 1, stage_ends = next == kBatches;
        wgmma_fence();
        multiply(part, w[i % 2], x, b, b % kChunk > 0);
        wgmma_commit();
        float2 scale{1, 1};
        if (ends && Operand::kGroups) scale = weight_scale(stage, m, group_at<kChunk>(first, b));
        if (!stage_ends) {
          wgmma_wait<1>();
          prepare<kChunk>(stage, next / kBlocks, next % kBlocks, first, w[next % 2]);
        } else if (kAhead) {
          next_stage(first);
          wgmma_wait<1>();
          prepare<kChunk>(shared_.stage(ring_.slot), 0, 0, first + kBlocks, w[0]);
        }
        if (ends) {
          wgmma_wait<0>();
          pin(part);
          promote<0>(m, part, stage, scale);
        }
      }
    }
    release(slot);
    if constexpr (!kAhead) {
      next_stage(first);
      prepare<kChunk>(shared_.stage(ring_.slot), 0, 0, first + kBlocks, w[0]);
    }
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
    if constexpr (Operand::kBlockScales) {
      const auto* const factors = reinterpret_cast<const float2*>(stage + Tile::kXScales) +
                                  m * (Tile::kRows / 2) + kBegin / 2 + lane_col();
#pragma unroll
      for (int o = 0; o < kCount / 4; ++o) {
        const float2 two = factors[o * 4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          to[kBegin / 2 + o * 4 + i] += part[o * 4 + i] * (i % 2 == 0 ? two.x : two.y);
      }
    } else if constexpr (Operand::kXScales == XScales::kGroup) {
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
  const WgmmaShared<Tile>& shared_;
  RingSlot<Tile>& ring_;
  uint32_t zero_[2] = {};
};

}  // namespace moracle::cuda
