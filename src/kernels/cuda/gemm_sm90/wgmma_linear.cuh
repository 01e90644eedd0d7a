// Grouped GEMM on Hopper's tensor cores. Blocks are persistent: one warpgroup loads tile after
// tile, two multiply. Only the device knows how many tiles there are.
#pragma once

#include "kernels/cuda/gemm_sm90/wgmma_cluster.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_epilogue.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_loader.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_token_store.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace moracle::cuda {

template <class Operand, class Tile, int kN>
__device__ __forceinline__ void compute_tile(const WgmmaArgs& a, const WgmmaShared<Tile>& shared,
                                             RingSlot<Tile>& ring,
                                             const typename Tile::Info& info) {
  WgmmaSums<Operand, Tile, kN> sums(a, shared, ring);
  if constexpr (Tile::kDense) {
    sums.run();
    ClusterStore<Operand, Tile, kN>(a, shared, info).run(sums);
  } else {
    const WgmmaEpilogue<Operand, Tile, kN> epilogue(a, info);
    sums.run();
    epilogue.store_all(sums);
  }
}

template <class Operand, class Tile>
__device__ __forceinline__ void compute_tokens(const WgmmaArgs& a, const WgmmaShared<Tile>& shared,
                                               RingSlot<Tile>& ring,
                                               const typename Tile::Info& info) {
  WgmmaTokens<Operand, Tile> sums(a, shared, ring);
  if (info.place.rows <= static_cast<int>(threadIdx.x / 128) * 64) {
    sums.skip();
  } else {
    sums.run();
    TokenStore<Operand, Tile>(a, info).store_all(sums);
  }
}

template <class Operand, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kPerSm)
    wgmma_linear(const __grid_constant__ WgmmaArgs a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t memory[];
  const WgmmaShared<Tile> shared{memory};
  if (threadIdx.x == 0) {
    tma_prefetch_map(Operand::kTokenRows ? a.boxes.columns : a.boxes.codes);
    if constexpr (Operand::kGroups) tma_prefetch_map(a.boxes.scales);
  }
  if (threadIdx.x < Tile::kStages) {
    // The loaders' copies and the expected bytes; one arrival for each computing warp.
    mbarrier_init(shared.full(threadIdx.x), Tile::kLoaders + 1);
    mbarrier_init(shared.empty(threadIdx.x), Tile::kComputers / 32);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= Tile::kComputers) {
    setmaxnreg_dec<Tile::kLoaderRegisters>();
    WgmmaLoader<Operand, Tile>(a, shared).run();
  } else {
    setmaxnreg_inc<Tile::kComputerRegisters>();
    RingSlot<Tile> ring;
    for (int at = 0;; at = at + 1 == Tile::kInfos ? 0 : at + 1) {
      mbarrier_wait(shared.full(ring.slot), ring.parity);
      const typename Tile::Info& info = shared.info(at);
      if (info.place.expert < 0) break;
      // Tiles of fewer rows take a narrower instruction.
      if constexpr (Operand::kTokenRows)
        compute_tokens<Operand, Tile>(a, shared, ring, info);
      else if (Tile::kHalfRows < Tile::kRows && info.place.rows <= Tile::kHalfRows)
        compute_tile<Operand, Tile, Tile::kHalfRows>(a, shared, ring, info);
      else if (Tile::kMostRows < Tile::kRows && info.place.rows <= Tile::kMostRows)
        compute_tile<Operand, Tile, Tile::kMostRows>(a, shared, ring, info);
      else
        compute_tile<Operand, Tile, Tile::kRows>(a, shared, ring, info);
    }
  }
#endif
}

template <class Operand, class Tile>
WgmmaKernel wgmma_kernel() {
  return {wgmma_linear<Operand, Tile>,
          Tile::kRows,
          Tile::kOutputs,
          Tile::kThreads,
          Tile::kSharedBytes,
          Tile::kPerSm,
          Tile::kBlocks,
          Tile::kBlockBytes,
          Operand::kGroups ? Tile::kScaleBytes : 0,
          Tile::kAhead,
          Operand::kTokenRows};
}

/// Kernels for kWgmmaTiles. Tiles of 144 and 192 rows need the registers that unpacking takes.
/// `Many` is the operand of experts from 128 rows on.
template <class Operand, class Many = Operand>
WgmmaKernels wgmma_kernels() {
  // k-blocks of a stage: 128 bytes of a row, at least. Twice as many of MXFP4 are up to 4 % faster,
  // of int4 slower, where fewer stages fit beside its scales. The blocks of a cluster share few
  // columns, so their stages stay small.
  constexpr int kDenseBlocks = Operand::kCodeBits == 16 ? 2 : 4;
  constexpr int kBlocks = Operand::kCodeBits == 4 && Operand::kFolded ? 8 : kDenseBlocks;
  // Unpacking 4 bits, or folding scales, takes so long that a second block pays.
  constexpr int kPerSm = Operand::kCodeBits == 4 || Operand::kFolded ? 2 : 1;
  constexpr int kWide = Many::kWide ? 192 : 128, kBetween = Many::kWide ? 144 : 128;
  static const WgmmaKernel kGrouped[] = {
      wgmma_kernel<Operand, FullWgmmaTile<Operand, 2, 16, kBlocks, kPerSm>>(),
      wgmma_kernel<Operand, FullWgmmaTile<Operand, 2, 32, kBlocks>>(),
      wgmma_kernel<Operand, FullWgmmaTile<Operand, 2, 64, kBlocks>>(),
      wgmma_kernel<Many, FullWgmmaTile<Many, 2, 128, kBlocks>>(),
      wgmma_kernel<Many, FullWgmmaTile<Many, 2, kBetween, kBlocks>>(),
      wgmma_kernel<Many, FullWgmmaTile<Many, 2, kWide, kBlocks>>(),
      wgmma_kernel<Many, FullWgmmaTile<Many, 2, kBetween, kBlocks>>(),
      wgmma_kernel<Many, FullWgmmaTile<Many, 2, kWide, kBlocks>>()};
  static const WgmmaKernel kDense[] = {
      wgmma_kernel<Operand, DenseWgmmaTile<Operand, 2, 32, kDenseBlocks>>(),
      wgmma_kernel<Operand, DenseWgmmaTile<Operand, 2, 64, kDenseBlocks>>(),
      wgmma_kernel<Operand, DenseWgmmaTile<Operand, 2, 128, kDenseBlocks>>()};
  const WgmmaKernel* shared = nullptr;
  if constexpr (kPerSm > 1) {
    static const WgmmaKernel kShared =
        wgmma_kernel<Operand, DenseWgmmaTile<Operand, 2, 16, kBlocks, kPerSm>>();
    shared = &kShared;
  }
  return {std::span(kGrouped).first(Many::kWide ? 8 : 4), kDense, shared};
}

}  // namespace moracle::cuda
