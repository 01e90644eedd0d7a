// Mainloop of a consumer warpgroup for tiles whose tokens are the rows of the product: 64 tokens
// times all outputs of the tile, which wgmma reads from shared memory. So the scales of a token,
// and of 128 outputs, are a few scalars of a thread. Tokens come from registers if groups of
// them have scales, cp.async loads them, and no whole lines are stored; else from shared memory.
#pragma once

#include "kernels/cuda/gemm_sm90/wgmma_args.h"
#include "kernels/cuda/gemm_sm90/wgmma_tile.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/tiles/groups.cuh"

namespace moracle::cuda {

/// Sums of a lane: those of tokens lane_row() and lane_row() + 8 of its warp.
template <class Operand, class Tile>
class TokenMainloop {
 public:
  static constexpr int kWidth = 128, kChunks = Tile::kOutputs / kWidth;

  __device__ TokenMainloop(const WgmmaArgs& args, const WgmmaShared<Tile>& shared,
                           RingSlot<Tile>& ring)
      : a_(args), shared_(shared), ring_(ring) {}

  float total[kChunks][kWidth / 2];

  /// Multiplies all stages of a tile. The first one is full. While this warpgroup scales sums and
  /// adds them to totals, the other one multiplies.
  __device__ __forceinline__ void run() {
#pragma unroll
    for (auto& chunk : total) {
#pragma unroll
      for (float& sum : chunk) sum = 0;
    }
    if constexpr (kScalesInStages)
      run_stages();
    else
      run_groups();
    if constexpr (kTokensShared) avoid_bank_conflicts();
  }

  /// Skips the stages of a tile that has no tokens for this warpgroup.
  __device__ void skip() {
    for (int first = 0; first < a_.blocks; first += Tile::kBlocks) {
      if (first > 0) mbarrier_wait(shared_.full(ring_.slot), ring_.parity);
      release(ring_.slot);
      ring_.advance();
    }
  }

 private:
  static constexpr bool kScalesInStages = Operand::kXScales == XScales::kGroup;
  static constexpr bool kTokensShared =
      kStoresLines<Operand> || kLoadsRows<Operand> || !kScalesInStages;
  static constexpr int kSteps = Tile::kBlocks;                       // 32 columns each
  static constexpr int kStepBytes = kTmaPanels * Tile::kBlockBytes;  // of a TMA tile of weights
  static constexpr int kScales = kTileScales<Operand>;
  static_assert(kWidth == 16 * kTmaPanels && Operand::kXBytes == 1);

  // Each stage has scales.
  __device__ __forceinline__ void run_stages() {
    float partial[kWidth / 2];
    uint32_t x[kSteps][4];
    for (int first = 0; first < a_.blocks; first += Tile::kBlocks) {
      if (first > 0) mbarrier_wait(shared_.full(ring_.slot), ring_.parity);
      if constexpr (!kTokensShared) read_tokens(x);
      multiply(partial, x, 0);
      const Factors factors(shared_.stage(ring_.slot));
#pragma unroll
      for (int p = 0; p < kChunks; ++p) {
        wgmma_wait<0>();
        pin(partial);
        if (p == kChunks - 1) {
          release(ring_.slot);
          ring_.advance();
        }
        promote(total[p], partial, factors.of[p]);
        if (p < kChunks - 1) multiply(partial, x, p + 1);
      }
    }
  }
  // Sums of kSumStages stages, first of one part of the outputs, then of the other one. Tokens come
  // from shared memory.
  __device__ __forceinline__ void run_groups() {
    constexpr int kStages = Operand::kSumStages;
    static_assert(kStages < Tile::kStages);
    float partial[kWidth / 2];
    const uint32_t none[kSteps][4] = {};
    for (int first = 0; first < a_.blocks; first += kStages * Tile::kBlocks) {
      RingSlot<Tile> stage;
#pragma unroll
      for (int p = 0; p < kChunks; ++p) {
        int before = 0;
        stage = ring_;
#pragma unroll
        for (int s = 0; s < kStages; ++s) {
          if (s > 0) {
            if (first + s * Tile::kBlocks >= a_.blocks) break;
            before = stage.slot;
            stage.advance();
          }
          if (p == 0 && first + s > 0) mbarrier_wait(shared_.full(stage.slot), stage.parity);
          multiply(partial, none, p, stage.slot, s > 0);
          if (s > 0 && p == kChunks - 1) {
            wgmma_wait<1>();
            release(before);
          }
        }
        wgmma_wait<0>();
        pin(partial);
        if (p == kChunks - 1) release(stage.slot);
#pragma unroll
        for (int i = 0; i < kWidth / 2; ++i) total[p][i] += partial[i];
      }
      ring_ = stage;
      ring_.advance();
    }
  }

  // The factors of the sums of the lane's two tokens and each scale of the TMA tiles.
  struct Factors {
    float of[kChunks][kScales][2];
    __device__ explicit Factors(const uint8_t* stage) {
      const auto* const x = reinterpret_cast<const float*>(stage + Tile::kXScales);
#pragma unroll
      for (int p = 0; p < kChunks; ++p) {
#pragma unroll
        for (int s = 0; s < kScales; ++s) {
          const float w = x[Tile::kRows + p * Tile::kWeightScale + s];
          of[p][s][0] = x[token()] * w, of[p][s][1] = x[token() + 8] * w;
        }
      }
    }
  };
  // The lane's first token.
  __device__ static int token() {
    return static_cast<int>(threadIdx.x / 32) * 16 + lane_row();
  }

  // Rows of 128 bytes, swizzled as the producer stores them.
  __device__ __forceinline__ void read_tokens(uint32_t (&x)[kSteps][4]) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row = static_cast<int>(threadIdx.x / 32) * 16 + lane % 16;
    const uint8_t* const from = shared_.stage(ring_.slot) + row * 128;
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
      ldmatrix_x4(x[s], from + (((2 * s + lane / 16) ^ (row % 8)) << 4));
  }
  __device__ uint64_t tokens(int slot) const {
    const auto group = static_cast<uint32_t>(threadIdx.x / 128);
    return swizzled_descriptor(shared_address(shared_.stage(slot)) + group * 64 * 128);
  }
  // Weights lie as [tile][k-block][panel][2 · 8 outputs][2 · 16 columns].
  __device__ __forceinline__ void multiply(float (&sum)[kWidth / 2], const uint32_t (&x)[kSteps][4],
                                           int tile) const {
    multiply(sum, x, tile, ring_.slot, false);
  }
  __device__ __forceinline__ void multiply(float (&sum)[kWidth / 2], const uint32_t (&x)[kSteps][4],
                                           int tile, int slot, bool add) const {
    const uint32_t codes = shared_address(shared_.stage(slot)) + Tile::kCodes;
    const uint64_t w = unswizzled_descriptor(codes + tile * kTmaPanels * Tile::kPanelBytes,
                                             Tile::kBlockBytes / 4, Tile::kBlockBytes / 2);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if constexpr (kTokensShared)
        wgmma_n128_fp8(sum, tokens(slot) + s * 32 / 16, w + s * kStepBytes / 16, add || s > 0);
      else
        wgmma<Operand::kProducts, kWidth>(sum, x[s], w + s * kStepBytes / 16, add || s > 0);
    }
    wgmma_commit();
  }
  __device__ static __forceinline__ void promote(float (&to)[kWidth / 2],
                                                 const float (&sum)[kWidth / 2],
                                                 const float (&factors)[kScales][2]) {
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i)
      to[i] += sum[i] * factors[i * kScales / (kWidth / 2)][i % 4 / 2];
  }

  // A product's sums lie in registers that follow one another, and registers of one parity share a
  // bank. Where most totals are in the bank of their sums, products are slower. Stores of pairs,
  // the odd total first, make ptxas choose the other bank; their predicate is false.
  __device__ __forceinline__ void avoid_bank_conflicts() const {
    const int never = a_.blocks < 0 ? 1 : 0;
    const uint32_t nowhere = shared_address(shared_.base);
#pragma unroll
    for (const auto& chunk : total) {
#pragma unroll
      for (int i = 0; i < kWidth / 2; i += 2)
        store_shared_pair_if(never, nowhere, chunk[i + 1], chunk[i]);
    }
  }

  __device__ void release(int slot) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_.empty(slot));
  }

  const WgmmaArgs& a_;
  const WgmmaShared<Tile>& shared_;
  RingSlot<Tile>& ring_;
};

}  // namespace moracle::cuda
