// The kernel of cuda-sm80: each block goes through tiles, blockIdx.x first, of which the device
// alone knows how many there are.
#pragma once

#include "kernels/cuda/mma_sums.cuh"

namespace moracle::cuda {

template <class Operand, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm) mma_linear(const MmaArgs a) {
  extern __shared__ __align__(16) uint8_t stages[];
  using Loader = MmaLoader<Operand, Tile>;
  __shared__ TilePlace places[Loader::kPlaces];
  Loader loader(a, stages, places);
  for (int s = 0; s < Tile::kLookahead; ++s) loader.load();
  const auto wait_for_stage = [] {
    wait_for_batches<Tile::kLookahead - 1>();
    __syncthreads();
  };
  wait_for_stage();
  int slot = 0;
  MmaShare<Operand, Tile> share;
  if (Tile::kReadsAhead) share.read(stages, 0);
  for (int at = 0;; at = at + 1 == Loader::kPlaces ? 0 : at + 1) {
    const TilePlace place = places[at];
    if (place.expert < 0) break;
    MmaSums<Operand, Tile> sums(a);
    const uint8_t* stage = nullptr;
    for (int first = 0; first < a.blocks; first += Tile::kBlocks) {
      if (!Tile::kReadsAhead && first > 0) wait_for_stage();
      stage = stages + slot * Tile::kStageBytes;
      slot = slot + 1 == Tile::kStages ? 0 : slot + 1;
      if constexpr (Tile::kReadsAhead) {
        loader.load();
#pragma unroll
        for (int b = 0; b < Tile::kBlocks; ++b) {
          const MmaShare<Operand, Tile> now = share;
          if (b + 1 < Tile::kBlocks) {
            share.read(stage, b + 1);
          } else {
            wait_for_stage();
            share.read(stages + slot * Tile::kStageBytes, 0);
          }
          sums.add_block(stage, first, b, now);
        }
      } else {
        sums.add_stage(stage, first, [&] { loader.load(); });
      }
    }
    sums.finish(stage, place);
    if (!Tile::kReadsAhead) wait_for_stage();
  }
}

/// From few rows to many. Up to 32 memory bounds, and a stage is 8 KiB of codes; beyond it products
/// do, and each code that a warp unpacks serves 32 rows or 64.
template <class Operand>
MmaKernels mma_kernels() {
  constexpr int kLong = 16 / Operand::kCodeBits;  // blocks: 4 of 4 bits, 2 of 8, 1 of 16
  const auto kernel = []<class Tile>(Tile) {
    return MmaKernel{mma_linear<Operand, Tile>, Tile::kRows, Tile::kOutputs, Tile::kThreads,
                     Tile::kSharedBytes};
  };
  constexpr bool kLarge = Operand::kXBytes * Operand::kCodeBits > 8;  // a stage for 128 rows
  using Widest =
      std::conditional_t<Operand::kGroups,
                         MmaTile<Operand, 2, 4, 4, 4, kLarge ? 1 : 2, kLarge ? 6 : 4, 1, true>,
                         MmaTile<Operand, 2, 2, 4, 8, 2, kLarge ? 3 : 4, 2>>;
  static const MmaKernel kKernels[] = {
      kernel(MmaTile<Operand, 4, 1, 2, 1, kLong, 4, 3>{}),
      kernel(MmaTile<Operand, 4, 1, 2, 2, kLong, 4, 3>{}),
      kernel(MmaTile<Operand, 4, 1, 2, 4, 2, 4, 3>{}),
      kernel(MmaTile<Operand, 4, 2, 2, 4, 2, 4, 2>{}),
      kernel(Widest{}),
  };
  return kKernels;
}

}  // namespace moracle::cuda
