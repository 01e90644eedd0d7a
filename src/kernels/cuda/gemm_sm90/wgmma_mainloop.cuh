// Mainloop of a computing warpgroup: the sums of one tile. A batch is a unit (a k-block, or half
// of one) of one or all m64 of the warpgroup. While a batch is multiplied, the next one is unpacked
// into other registers. Each sum accumulates the columns in order, independent of the neighbouring
// rows and of kN.
#pragma once

#include "kernels/cuda/gemm_sm90/wgmma_promoted.cuh"

namespace moracle::cuda {

template <class Operand, class Tile, int kN>
class WgmmaSums : public WgmmaPromoted<Operand, Tile, kN> {
 public:
  using Base = WgmmaPromoted<Operand, Tile, kN>;
  using Base::Base, Base::total;
  using typename Base::Sum;

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
      this->template run_promoted<1>();
    else if constexpr (kFew)
      run_chunks();
    else
      this->template run_promoted<kBlocks>();
  }

 private:
  using Base::a_, Base::own_, Base::shared_, Base::ring_, Base::kBlocks, Base::kM;
  using Base::descriptor, Base::multiply, Base::next_stage, Base::release, Base::unpack;
  using Base::folded_group, Base::run_chunks, Base::run_halves;
  using typename Base::Weights;
  // m64 of a batch: all where registers allow.
  static constexpr int kBatch = !Operand::kPromoted && kM * kN <= 256 ? kM : 1;
  static constexpr int kSplit = kM / kBatch;  // batches of a k-block
  static constexpr int kStageUnits = kBlocks * Operand::kUnits;
  static constexpr int kBatches = kStageUnits * kSplit;  // of a stage
  static_assert(kBatches % 2 == 0);                      // the same registers begin each stage

  // Sums stay in the instruction's registers.
  __device__ __forceinline__ void run_straight() {
    Weights w[2][kBatch];
#pragma unroll
    for (int m = 0; m < kBatch; ++m)
      unpack(shared_.stage(ring_.slot), m, 0, folded_group(own_.begin(), 0), w[0][m]);
    for (int first = own_.begin(); first < own_.end(); first += kBlocks) straight_stage(w, first);
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
        if (i == 0 && first > own_.begin()) release(slot == 0 ? Tile::kStages - 1 : slot - 1);
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
};

}  // namespace moracle::cuda
