// Kernel of cuda-sm80. CTAs are persistent and compute tiles from tile blockIdx.x on. Only the
// device knows how many tiles there are.
#pragma once

#include "kernels/cuda/gemm_sm80/mma_kernels.h"
#include "kernels/cuda/gemm_sm80/mma_mainloop.cuh"
#include "kernels/cuda/gemm_sm80/mma_plan.h"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/tiles/tile_finder.cuh"

namespace moracle::cuda {

// A stage has arrived when at most `stages` - 2 later ones are on their way.
template <int kStages>
__device__ __forceinline__ void wait_for_stage(int stages) {
  if constexpr (kStages > 2) {
    if (stages < kStages) return wait_for_stage<kStages - 1>(stages);
  }
  cp_async_wait<kStages - 2>();
}

/// `stages`: of shared memory, from 2 to Tile::kStages. Their number changes no result.
template <class Operand, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    mma_linear(const GemmArgs a, int stages_there) {
  pdl_wait();
  pdl_launch_dependents();
  extern __shared__ __align__(16) uint8_t stages[];
  using Loader = MmaLoader<Operand, Tile>;
  __shared__ WorkTile tiles[Loader::kTileSlots];
  Loader loader(a, stages, stages_there, tiles);
  for (int s = 0; s < stages_there - 1; ++s) loader.load();
  int slot = 0;
  for (int at = 0;; at = at + 1 == Loader::kTileSlots ? 0 : at + 1) {
    wait_for_stage<Tile::kStages>(stages_there);
    __syncthreads();  // a stage has arrived, and the previous stage has been read
    const WorkTile tile = tiles[at];
    if (tile.expert < 0) break;
    MmaSums<Operand, Tile> sums(a);
    const uint8_t* stage = nullptr;
    for (int first = 0; first < a.blocks; first += Tile::kBlocks) {
      if (first > 0) {
        wait_for_stage<Tile::kStages>(stages_there);
        __syncthreads();
      }
      loader.load();
      asm volatile("" ::: "memory");  // issue copies first: they take longest
      stage = stages + slot * Tile::kStageBytes;
      sums.add(stage, first);
      slot = slot + 1 == stages_there ? 0 : slot + 1;
    }
    sums.finish(stage, tile);
  }
}

/// Kernels from few rows to many. With few rows, memory is the bottleneck, and a stage is 8 KiB of
/// codes. With many rows, products are the bottleneck, and each code that a warp unpacks serves 64
/// rows. Sums in groups take twice the registers.
template <class Operand>
MmaKernels mma_kernels() {
  constexpr int kLong = 16 / Operand::kCodeBits;  // k-blocks: 4 of 4 bits, 2 of 8, 1 of 16
  const auto kernel = []<class Tile, size_t kIndex>(Tile, std::integral_constant<size_t, kIndex>) {
    constexpr const MmaTiles& tiles = Operand::kGroups ? kTilesInGroups : kTilesOfRows;
    static_assert(Tile::kRows == tiles[kIndex].rows);
    return MmaKernel{mma_linear<Operand, Tile>, Tile::kRows,   Tile::kOutputs,    Tile::kThreads,
                     Tile::kStageBytes,         Tile::kStages, Tile::kBlocksPerSm};
  };
  constexpr int kDeep = Operand::kXBytes * Operand::kCodeBits > 8 ? 3 : 4;
  using Widest = std::conditional_t<Operand::kGroups, MmaTile<Operand, 4, 1, 2, 8, 2, 4, 2>,
                                    MmaTile<Operand, 2, 2, 4, 8, 2, kDeep, 2>>;
  static const MmaKernel kKernels[] = {
      kernel(MmaTile<Operand, 4, 1, 2, 1, kLong, 4, 3>{}, std::integral_constant<size_t, 0>{}),
      kernel(MmaTile<Operand, 4, 1, 2, 2, kLong, 4, 3>{}, std::integral_constant<size_t, 1>{}),
      kernel(MmaTile<Operand, 4, 1, 2, 4, 2, 4, 3>{}, std::integral_constant<size_t, 2>{}),
      kernel(Widest{}, std::integral_constant<size_t, 3>{}),
  };
  return kKernels;
}

}  // namespace moracle::cuda
