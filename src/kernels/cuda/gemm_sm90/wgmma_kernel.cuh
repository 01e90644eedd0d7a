// Grouped GEMM on Hopper's tensor cores: persistent and warp-specialized. A producer warpgroup
// loads tile after tile with TMA, two consumer warpgroups multiply. Only the device knows how many
// tiles there are.
#pragma once

#include "kernels/cuda/gemm_sm90/wgmma_epilogue.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_line_epilogue.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_mainloop.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_producer.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_row_producer.cuh"
#include "kernels/cuda/operands/wgmma_operands.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace moracle::cuda {

/// Mainloop and epilogue of the consumer warpgroups for a tile. wgmma_token_epilogue.cuh has the
/// specialization for tiles whose tokens are the rows of the product.
template <class Operand, class Tile, bool kTokenRows = Operand::kTokenRows>
struct TileWork {
  /// Tiles of fewer rows take a narrower instruction.
  __device__ __forceinline__ static void run(const WgmmaArgs& a, const WgmmaShared<Tile>& shared,
                                             RingSlot<Tile>& ring,
                                             const typename Tile::Info& info) {
    if (Tile::kHalfRows < Tile::kRows && info.tile.rows <= Tile::kHalfRows)
      run_width<Tile::kHalfRows>(a, shared, ring, info);
    else if (Tile::kBetweenRows > Tile::kHalfRows && info.tile.rows <= Tile::kBetweenRows)
      run_width<Tile::kBetweenRows>(a, shared, ring, info);
    else if (Tile::kMostRows < Tile::kRows && info.tile.rows <= Tile::kMostRows)
      run_width<Tile::kMostRows>(a, shared, ring, info);
    else
      run_width<Tile::kRows>(a, shared, ring, info);
  }

 private:
  template <int kN>
  __device__ __forceinline__ static void run_width(const WgmmaArgs& a,
                                                   const WgmmaShared<Tile>& shared,
                                                   RingSlot<Tile>& ring,
                                                   const typename Tile::Info& info) {
    WgmmaConsumer<Operand, Tile, kN> consumer(a, shared, ring);
    if constexpr (Tile::kDense) {
      run_mainloop(consumer);
      SplitKEpilogue<Operand, Tile, kN>(a, shared, info).run(consumer);
    } else {
      // Before the mainloop the epilogue loads its factors, if there are registers for them.
      constexpr bool kLate = Operand::kPromoted && kN > (Operand::kBlockGroups ? 96 : 128);
      const auto epilogue = [&] {
        if constexpr (kStoresLines<Operand>)
          return WgmmaLineEpilogue<Operand, Tile, kN>(a, shared, info);
        else
          return WgmmaEpilogue<Operand, Tile, kN>(a, info);
      };
      if constexpr (kLate) {
        run_mainloop(consumer);
        epilogue().store_all(consumer);
      } else {
        const auto ready = epilogue();
        run_mainloop(consumer);
        ready.store_all(consumer);
      }
    }
  }
};

static __constant__ const E2m1Table kE2m1Table{};

template <class Operand, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kPerSm)
    wgmma_linear(const __grid_constant__ WgmmaArgs a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t memory[];
  const WgmmaShared<Tile> shared{memory};
  using Producer = std::conditional_t<kLoadsRows<Operand>, WgmmaRowProducer<Operand, Tile>,
                                      WgmmaProducer<Operand, Tile>>;
  if (threadIdx.x == 0) {
    tma_prefetch_map(Operand::kTokenRows ? a.tma.columns : a.tma.codes);
    if constexpr (Operand::kGroups) tma_prefetch_map(a.tma.scales);
    if constexpr (kLoadsRows<Operand>) tma_prefetch_map(a.rows);
  }
  if (threadIdx.x < Tile::kStages) {
    // The producers' copies and the expected bytes; one arrival for each consumer warp.
    mbarrier_init(shared.full(threadIdx.x), Producer::kArrivals);
    mbarrier_init(shared.empty(threadIdx.x), Tile::kConsumers / 32);
    mbarrier_init_fence();
  }
  if constexpr (kIsRebased<Operand>) {
    if (threadIdx.x < 2 * kE2m1Downs) shared.table()[threadIdx.x] = kE2m1Table.words[threadIdx.x];
  }
  __syncthreads();
  if (threadIdx.x >= Tile::kConsumers) {
    setmaxnreg_dec<Tile::kProducerRegisters>();
    Producer(a, shared).run();
  } else {
    setmaxnreg_inc<Tile::kConsumerRegisters>();
    RingSlot<Tile> ring;
    for (int at = 0;; at = at + 1 == Tile::kInfos ? 0 : at + 1) {
      mbarrier_wait(shared.full(ring.slot), ring.parity);
      const typename Tile::Info& info = shared.info(at);
      if (info.tile.expert < 0) break;
      TileWork<Operand, Tile>::run(a, shared, ring, info);
    }
  }
#endif
}

template <class Operand, class Tile>
WgmmaKernel wgmma_kernel() {
  static_assert(Tile::kStages > 1);  // mainloops wait for the next stage before they release one
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
          Operand::kTokenRows && Operand::kXScales == XScales::kGroup,
          kLoadsRows<Operand> ? Tile::kBoxRows : 0,
          kLoadsRows<Operand> && Operand::kXScales == XScales::kGroup};
}

/// TMA loads the rows of matrices without gates, unless it would have to load their scales of
/// groups.
template <class Many>
using PlainOf = std::conditional_t<Many::kXScales == XScales::kGroup, Many, OrderedRows<Many>>;

/// Sums of products in bf16 are promoted with scales of groups: two tiles of 144 rows are never
/// faster (wgmma_plan.cc).
template <class Many>
inline constexpr bool kPromotesGroups = [] {
  if constexpr (Many::kPromoted) return Many::kSmallGroups;
  return false;
}();

/// `Many` is the operand of experts from 128 rows on, but for tiles of 144 rows, `Plain` that of
/// their matrices without gates, `ByRow` the same for scales by row, and `Ordered` that of gates
/// whose rows are ordered.
template <class Operand, class Many = Operand, class Plain = PlainOf<Many>, class ByRow = Plain,
          class Ordered = Many>
WgmmaKernels wgmma_kernels() {
  // k-blocks of a stage: 128 bytes of a row, at least. Twice as many of MXFP4 are up to 4 % faster,
  // of int4 slower, where fewer stages fit beside its scales. The CTAs of a cluster share few
  // columns, so their stages stay small.
  constexpr int kDenseBlocks = Operand::kCodeBits == 16 || Operand::kValues ? 2 : 4;
  constexpr int kBlocks = Operand::kCodeBits == 4 && Operand::kFolded ? 8 : kDenseBlocks;
  // Unpacking 4 bits or values, or folding scales, takes so long that a second CTA pays.
  constexpr int kPerSm = Operand::kCodeBits == 4 || Operand::kFolded || Operand::kValues ? 2 : 1;
  constexpr bool kByGroup = Many::kXScales == XScales::kGroup;
  constexpr int kMost = Many::kWide ? 192 : 128,
                kBetween = kByGroup || Many::kBlockGroups ? 128 : 144;
  using Between = std::conditional_t<kByGroup || !Many::kTokenRows, Many, Operand>;
  // Experts of about 512 rows: half of them have five tiles of 104 to 112 rows.
  constexpr int kNarrow = Many::kXBytes == 2 && !Many::kBlockGroups ? 112 : 96;
  static const WgmmaKernel kGrouped[] = {
      wgmma_kernel<Operand, FullWgmmaTile<Operand, 2, 16, kBlocks, kPerSm>>(),
      wgmma_kernel<Operand, FullWgmmaTile<Operand, 2, 32, kBlocks>>(),
      wgmma_kernel<Operand, FullWgmmaTile<Operand, 2, 64, kBlocks>>(),
      wgmma_kernel<Many, FullWgmmaTile<Many, 2, 128, kBlocks>>(),
      wgmma_kernel<Between, FullWgmmaTile<Between, 2, kBetween, kBlocks>>(),
      wgmma_kernel<Between, FullWgmmaTile<Between, 2, kBetween, kBlocks>>(),
      wgmma_kernel<Many, FullWgmmaTile<Many, 2, kMost, kBlocks, 1, kNarrow>>()};
  static const WgmmaKernel kDense[] = {
      wgmma_kernel<Operand, DenseWgmmaTile<Operand, 2, 32, kDenseBlocks>>(),
      wgmma_kernel<Operand, DenseWgmmaTile<Operand, 2, 64, kDenseBlocks>>(),
      wgmma_kernel<Operand, DenseWgmmaTile<Operand, 2, 128, kDenseBlocks>>()};
  const WgmmaKernel* split_k = nullptr;
  if constexpr (kPerSm > 1) {
    static const WgmmaKernel kSplitK =
        wgmma_kernel<Operand, DenseWgmmaTile<Operand, 2, 16, kBlocks, kPerSm>>();
    split_k = &kSplitK;
  }
  WgmmaKernels all{.grouped = kGrouped, .dense = kDense, .split_k = split_k};
  if constexpr (!std::is_same_v<Plain, Many>) {
    static const WgmmaKernel kPlain =
        wgmma_kernel<Plain, FullWgmmaTile<Plain, 2, kMost, kBlocks, 1, kNarrow>>();
    all.plain_most = &kPlain;
    if constexpr (Many::kTokenRows) {
      all.plain_128 = &kPlain;
    } else if constexpr (!kPromotesGroups<Many>) {
      // Where one tile of 144 rows holds nearly every expert, loading rows by TMA is slower on
      // large experts (bench/lab/fp8_blocks.md): these tiles, and narrower ones, gather rows.
      static const WgmmaKernel kTwo = wgmma_kernel<Plain, FullWgmmaTile<Plain, 2, 144, kBlocks>>();
      all.plain_two_144 = &kTwo;
    }
  }
  if constexpr (!std::is_same_v<ByRow, Plain>) {
    static const WgmmaKernel kByRow = wgmma_kernel<ByRow, FullWgmmaTile<ByRow, 2, 128, kBlocks>>();
    all.by_row = &kByRow;
  }
  if constexpr (!std::is_same_v<Ordered, Many>) {
    static const WgmmaKernel kOrdered =
        wgmma_kernel<Ordered, FullWgmmaTile<Ordered, 2, 128, kBlocks>>();
    all.ordered = &kOrdered;
  }
  return all;
}

}  // namespace moracle::cuda
