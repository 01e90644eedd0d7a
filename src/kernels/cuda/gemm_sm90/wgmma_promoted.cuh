// Mainloops whose sums are promoted: those of some columns are scaled and added to f32 totals.
#pragma once

#include "kernels/cuda/gemm_sm90/wgmma_consumer.cuh"

namespace moracle::cuda {

template <class Operand, class Tile, int kN>
class WgmmaPromoted : public WgmmaStage<Operand, Tile, kN> {
 public:
  using Base = WgmmaStage<Operand, Tile, kN>;
  using Base::Base;
  using typename Base::Sum;

 protected:
  using Base::a_, Base::own_, Base::shared_, Base::ring_, Base::total, Base::kBlocks, Base::kM;
  using Base::descriptor, Base::next_stage, Base::release, Base::weight_scale;
  using typename Base::Weights;
  static constexpr int kChunks = kBlocks * kM;  // k-blocks of a stage, of all m64
  static_assert(kChunks % 2 == 0);              // the same registers begin each stage

  // Few rows: a chunk is a stage of one m64. The next chunk is unpacked while one is multiplied,
  // and the previous one is promoted while the next is multiplied. After the last chunk the
  // products of its stage are issued once more, without use.
  __device__ __forceinline__ void run_chunks() {
    Weights w[2][kBlocks];
    Sum part[2][kN / 2];
    unpack_chunk(shared_.stage(ring_.slot), 0, w[0]);
    wgmma_fence();
    multiply_chunk(part[0], w[0], descriptor());
    int used = -1;
    for (int first = own_.begin(); first < own_.end(); first += kBlocks) {
      const uint64_t x = descriptor();
      const uint8_t* const stage = shared_.stage(ring_.slot);
      unpack_chunk(stage, 1, w[1]);
      const float2 scales[2] = {chunk_scale(stage, 0), chunk_scale(stage, 1)};
      wait_unpacked(part[0]);
      multiply_chunk(part[1], w[1], x);
      if (used >= 0) release(used);
      this->template promote<0>(0, part[0], stage, scales[0]);
      used = ring_.slot;
      next_stage(first);
      unpack_chunk(shared_.stage(ring_.slot), 0, w[0]);
      wait_unpacked(part[1]);
      multiply_chunk(part[0], w[0], descriptor());
      this->template promote<0>(1, part[1], stage, scales[1]);
    }
    wgmma_wait<0>();
    pin(part[0]);
    release(ring_.slot);
    ring_.advance();
  }
  // Waits for a chunk's products when the next chunk is unpacked. The fence that the next products
  // need stands before the wait, and no branch follows: else ptxas unpacks after the wait. Where
  // two blocks share a multiprocessor, registers do not suffice for that.
  __device__ __forceinline__ void wait_unpacked(Sum (&part)[kN / 2]) const {
    if constexpr (Tile::kPerSm == 1) wgmma_fence();
    wgmma_wait<0>();
    pin(part);
    if constexpr (Tile::kPerSm > 1) wgmma_fence();
  }
  __device__ __forceinline__ void unpack_chunk(const uint8_t* stage, int m, Weights (&w)[kBlocks]) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) this->template prepare<kBlocks>(stage, m, b, 0, w[b]);
  }
  __device__ float2 chunk_scale(const uint8_t* stage, int m) const {
    if constexpr (Operand::kGroups) return weight_scale(stage, m, 0);
    return {1, 1};
  }
  // Issues a chunk's products with kWidth rows.
  template <int kWidth>
  __device__ __forceinline__ void multiply_chunk(Sum (&part)[kWidth], Weights (&w)[kBlocks],
                                                 uint64_t x) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) this->template multiply<2 * kWidth>(part, w[b], x, b, b > 0);
    wgmma_commit();
  }

  // Many rows, and codes that need no unpacking: one half of the rows is promoted while the other
  // half is multiplied.
  __device__ __forceinline__ void run_halves() {
    constexpr uint64_t kHalf = kN / 2 * 128 / 16;  // to the second half of x
    Weights w[kBlocks];
    Sum part[2][kN / 4];
    unpack_chunk(shared_.stage(ring_.slot), 0, w);
    wgmma_fence();
    multiply_chunk(part[0], w, descriptor());
    int used = -1;
    for (int first = own_.begin(); first < own_.end(); first += kBlocks) {
      const uint8_t* const stage = shared_.stage(ring_.slot);
      const uint64_t x = descriptor();
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const float2 scale = chunk_scale(stage, m);
        wgmma_wait<0>();
        pin(part[0]);
        if (m == 0 && used >= 0) release(used);
        wgmma_fence();
        multiply_chunk(part[1], w, x + kHalf);
        this->template promote<0>(m, part[0], stage, scale);
        if (m == kM - 1) {
          used = ring_.slot;
          next_stage(first);
        }
        wgmma_wait<0>();
        pin(part[1]);
        unpack_chunk(shared_.stage(ring_.slot), (m + 1) % kM, w);
        wgmma_fence();
        multiply_chunk(part[0], w, descriptor());
        this->template promote<kN / 2>(m, part[1], stage, scale);
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
    this->template prepare<kChunk>(shared_.stage(ring_.slot), 0, 0, 0, w[0]);
    for (int first = own_.begin(); first < own_.end(); first += kBlocks)
      promoted_stage<kChunk>(w, first);
    ring_.advance();
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
        const bool ends = b % kChunk == kChunk - 1, stage_ends = next == kChunks;
        wgmma_fence();
        this->multiply(part, w[i % 2], x, b, b % kChunk > 0);
        wgmma_commit();
        float2 scale{1, 1};
        if (ends && Operand::kGroups)
          scale = weight_scale(stage, m, this->template group_at<kChunk>(first, b));
        if (!stage_ends) {
          wgmma_wait<1>();
          this->template prepare<kChunk>(stage, next / kBlocks, next % kBlocks, first, w[next % 2]);
        } else if (kAhead) {
          next_stage(first);
          wgmma_wait<1>();
          this->template prepare<kChunk>(shared_.stage(ring_.slot), 0, 0, first + kBlocks, w[0]);
        }
        if (ends) {
          wgmma_wait<0>();
          pin(part);
          this->template promote<0>(m, part, stage, scale);
        }
      }
    }
    release(slot);
    if constexpr (!kAhead) {
      next_stage(first);
      this->template prepare<kChunk>(shared_.stage(ring_.slot), 0, 0, first + kBlocks, w[0]);
    }
  }
};

}  // namespace moracle::cuda
