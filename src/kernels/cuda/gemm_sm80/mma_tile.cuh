// Tiles for mma.sync: their sizes, and the layout of a stage in shared memory.
#pragma once

#include "kernels/cuda/operands/mma_operands.cuh"
#include "layout/mma16_block.h"

namespace moracle::cuda {

/// kWarpsOut times kWarpsRow warps. Each warp computes kPanels panels of 16 outputs for kOctets
/// times 8 rows of activations. A stage is kBlocks k-blocks of 32 columns. Shared memory holds up
/// to kStages stages.
template <class Operand, int kWarpsOut_, int kWarpsRow, int kPanels_, int kOctets_, int kBlocks_,
          int kStages_, int kBlocksPerSm_>
struct MmaTile {
  static constexpr int kWarpsOut = kWarpsOut_, kPanels = kPanels_, kOctets = kOctets_;
  static constexpr int kBlocks = kBlocks_, kStages = kStages_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kThreads = 32 * kWarpsOut * kWarpsRow;
  static constexpr int kAllPanels = kWarpsOut * kPanels, kOutputs = 16 * kAllPanels;
  // A warp has as many panels of the first half as of the second: gates and the outputs that they
  // multiply.
  static constexpr int kHalf = kAllPanels / 2, kWarpHalf = kPanels / 2;
  static_assert(kPanels % 2 == 0);
  static constexpr int kWarpRows = 8 * kOctets, kRows = kWarpsRow * kWarpRows;
  // Bytes of a k-block: codes of a panel, and columns of one activation row.
  static constexpr int kBlockBytes = mma16::block_bytes(Operand::kCodeBits);
  static constexpr int kXBlockBytes = mma16::kCols * Operand::kXBytes;
  // Sub-blocks of a k-block that may end a group, and scales of a row that a stage may need.
  static constexpr int kSubBlocks = Operand::kHalves ? 2 : 1;
  static constexpr int kGroups = Operand::kGroups ? kBlocks * kSubBlocks : 1;
  static constexpr int kXGroups = Operand::kXScales == XScales::kGroup ? kBlocks : 1;

  // Layout of a stage: codes [panel][block], x [block][row], scales [panel][group][16], zero points
  // likewise, minimums like scales, bias [panel][16], scales of x [group][row].
  static constexpr int kX = kAllPanels * kBlocks * kBlockBytes;
  static constexpr int kScales = kX + kBlocks * kRows * kXBlockBytes;
  static constexpr int kZeros = kScales + (Operand::kScaled ? kAllPanels * kGroups * 64 : 0);
  static constexpr int kMinimums = kZeros + (Operand::kZeros ? kAllPanels * kGroups * 16 : 0);
  static constexpr int kBias = kMinimums + (Operand::kMinimums ? kAllPanels * kGroups * 64 : 0);
  static constexpr int kXScales = kBias + kAllPanels * 64;
  static constexpr int kStageBytes =
      kXScales + (Operand::kXScales == XScales::kNone ? 0 : kXGroups * kRows * 4);
  static_assert(kStageBytes % 16 == 0);
  static_assert(kStages * kStageBytes <= 98 * 1024);  // every GPU from 8.0 on has 99 KiB
};

}  // namespace moracle::cuda
