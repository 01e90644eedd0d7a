// Tiles for wgmma: their sizes, and the layout of shared memory.
#pragma once

#include "kernels/cuda/gemm_sm90/wgmma_args.h"
#include "kernels/cuda/operands/e4m3_codes.h"
#include "kernels/cuda/operands/mma_operands.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/tiles/tile_finder.cuh"
#include "layout/mma16_block.h"

namespace moracle::cuda {

/// Warps store whole lines of y, through shared memory.
template <class Operand>
inline constexpr bool kStoresLines = requires {
  Operand::kWholeLines;
};

/// TMA loads the rows of x, which are contiguous for each tile.
template <class Operand>
inline constexpr bool kLoadsRows = requires {
  Operand::kOrderedRows;
};

/// The epilogue scales each output.
template <class Operand>
inline constexpr bool kScalesSums = Operand::kScaled &&
                                    (!Operand::kGroups || kHasRowFactors<Operand>);

/// Tokens are the rows of the product, and each output has a scale.
template <class Operand>
inline constexpr bool kScalesOutputs = Operand::kTokenRows&& Operand::kXScales == XScales::kToken;

/// Scales of a TMA tile of weights, 128 outputs, where tokens are the rows of the product.
template <class Operand>
inline constexpr int kTileScales = [] {
  if constexpr (requires { Operand::kScaledOutputs; }) return 128 / Operand::kScaledOutputs;
  return 1;
}();

/// Two consumer warpgroups compute. Each of their warps has kM panels of 16 outputs, for kN rows of
/// activations; four warps of 16 outputs make the 64 rows of one wgmma. Gated tiles need kM = 2. A
/// producer warpgroup loads stages of kBlocks k-blocks. An SM runs kPerSm CTAs. The CTAs of a
/// cluster may split K of the tiles of a kDense kernel. Of 128 rows, up to kMost take a narrower
/// product.
template <class Operand, int kM_, int kN_, int kBlocks_, int kStages_, int kPerSm_ = 1,
          bool kDense_ = false, int kMost_ = 96>
struct WgmmaTile {
  static constexpr int kM = kM_, kRows = kN_, kBlocks = kBlocks_, kStages = kStages_;
  static constexpr int kPerSm = kPerSm_;
  // The producer reads the plan of the rows, and copies the first weights, before the previous
  // kernel is complete. Wider tiles have no register left for that, and gain little.
  static constexpr bool kAhead = kRows <= 64;
  // Stages whose copies may be in flight at once. 64 KB keep memory busy, and with 8-bit codes
  // more of them slow it down (bench/lab/wgmma.md).
  static constexpr int kArriving =
      Operand::kXBytes == 1 && Operand::kCodeBits == 8 && kRows <= 32 && !kDense_ && kStages > 2
          ? 2
          : kStages;
  static constexpr bool kDense = kDense_;
  // An octet of rows is multiplied by mma.sync, which takes less than half the time of the
  // narrowest wgmma, and fewer instructions. Where unpacking bounds the products, that pays.
  static constexpr bool kHasOctet = kRows == 16 && kPerSm > 1 && Operand::kXBytes == 2;
  // Widths of narrower products. With 192 rows registers do not suffice for more than one width.
  static constexpr int kHalfRows = kRows == 64 || kRows == 128 || kHasOctet ? kRows / 2 : kRows;
  // Tiles of 128 rows serve experts of 53 to 114 rows on average, and of 141 to 232 in pairs: many
  // have 65 to 80.
  static constexpr int kBetweenRows =
      kIsFourBitFp8<Operand> && kRows == 128 && !kDense ? 80 : kHalfRows;
  static constexpr int kMostRows = kRows == 128 ? kMost_ : kRows == 64 && !kDense ? 48 : kRows;
  static constexpr int kProducers = 128, kConsumers = 256, kThreads = kProducers + kConsumers;
  static constexpr int kAllPanels = 8 * kM, kOutputs = 16 * kAllPanels, kHalf = kAllPanels / 2;
  // Registers of a thread, by warpgroup. Their sum is at most the CTA's share at launch: 168 or 80
  // a thread.
  static constexpr bool kSmallTile =
      Operand::kPromoted ? kRows <= 32 : kM * kRows <= (Operand::kWide ? 256 : 128);
  static constexpr int kProducerRegisters = kPerSm > 1 ? 24 : kSmallTile ? 72 : 40;
  static constexpr int kConsumerRegisters = kPerSm > 1 ? 104 : kSmallTile ? 216 : 232;
  static_assert(kProducers * kProducerRegisters + kConsumers * kConsumerRegisters <=
                kThreads * (65536 / kThreads / kPerSm / 8 * 8));

  static constexpr int kBlockBytes = mma16::block_bytes(Operand::kCodeBits);
  static constexpr int kPanelBytes = kBlocks * kBlockBytes;
  // A row of x in a stage: atoms of 128 bytes, each kRows · 128 bytes apart.
  static constexpr int kXBlockBytes = mma16::kCols * Operand::kXBytes;
  static constexpr int kAtoms = kBlocks * kXBlockBytes / 128;
  static constexpr int kAtomBytes = kRows * 128;
  // Rows of a TMA tile of x. A tile with few rows loads fewer of these.
  static constexpr int kBoxRows = kRows % 64 == 0 ? 64 : 48;
  static_assert(kBlocks * kXBlockBytes % 128 == 0 && kAtomBytes % 1024 == 0);
  // Groups whose scales a stage may need, and the bytes of 16 scales.
  static constexpr int kGroups =
      Operand::kGroups ? kBlocks * (Operand::kValues || kHasRowFactors<Operand> ? 2 : 1) : 0;
  static constexpr int kScaleBytes = Operand::kFolded || kIsRebased<Operand> ? 16 : 64;

  // A stage: x [atom][row][128], swizzled; codes [panel][block]; scales [panel][group][16]; zero
  // points and minimums likewise; scales of x [row], and where tokens are rows, kTileScales for
  // each TMA tile of weights.
  static constexpr int kCodes = kAtoms * kAtomBytes;
  static constexpr int kScales = kCodes + kAllPanels * kPanelBytes;
  static constexpr int kZeros = kScales + kGroups * kAllPanels * kScaleBytes;
  static constexpr int kMinimums = kZeros + (Operand::kZeros ? kGroups * kAllPanels * 16 : 0);
  static constexpr int kXScales = kMinimums + (Operand::kValues ? kGroups * kAllPanels * 64 : 0);
  // Floats of a TMA tile: TMA copies 16 bytes.
  static constexpr int kWeightScale = kLoadsRows<Operand> ? 4 : kTileScales<Operand>;
  static_assert(!kLoadsRows<Operand> || kTileScales<Operand> == 1);
  static constexpr int kStageEnd = kXScales +
                                   (Operand::kXScales == XScales::kGroup ? kRows * 4 : 0) +
                                   (Operand::kTokenRows && Operand::kXScales == XScales::kGroup
                                        ? kAllPanels / kTmaPanels * kWeightScale * 4
                                        : 0);
  static constexpr int kStageBytes = (kStageEnd + 1023) / 1024 * 1024;

  // After the stages: the epilogue's inputs for a tile, [tile]; barriers; the table of codes.
  struct Info {
    WorkTile tile;
    alignas(8) float x_scales[Operand::kXScales == XScales::kToken ? kRows : 4];
    alignas(16) float w_scales[kScalesOutputs<Operand> ? kOutputs : 4];  // or exponents
    alignas(16) float bias[Operand::kTokenRows ? kOutputs : 4];
  };
  static constexpr int kInfos = kStages + 1;
  static constexpr int kInfo = kStages * kStageBytes;
  static constexpr int kFull = kInfo + kInfos * static_cast<int>(sizeof(Info));
  static constexpr int kEmpty = kFull + kStages * 8;
  static constexpr int kTable = kEmpty + kStages * 8;
  static constexpr int kTableBytes = kIsRebased<Operand> ? static_cast<int>(sizeof(E2m1Table)) : 0;
  // 64 outputs of each warp's 16 tokens on their way to y, or two buffers with those of a
  // warpgroup's next tokens.
  static constexpr int kStagedRows = Operand::kTokenRows || (!Operand::kWide && kRows % 48 == 0)
                                         ? 16
                                     : kRows % 48 == 0 ? 48
                                                       : 32;
  static constexpr int kStaging = Operand::kTokenRows ? kConsumers / 32 : 2 * kConsumers / 128;
  static constexpr int kStagedBytes = kStoresLines<Operand> ? kStagedRows * 128 : 0;
  static constexpr int kStaged = (kTable + kTableBytes + 127) / 128 * 128;
  static constexpr int kSharedBytes =
      kStagedBytes > 0 ? kStaged + kStaging* kStagedBytes : kTable + kTableBytes;
  static_assert((kSharedBytes + 1024) * kPerSm <= 228 * 1024);
};

/// Stages that shared memory holds, at most 8.
template <class Operand, int kM, int kN, int kBlocks, int kPerSm>
constexpr int most_stages() {
  using One = WgmmaTile<Operand, kM, kN, kBlocks, 1, kPerSm>;
  constexpr int kEach = One::kStageBytes + static_cast<int>(sizeof(typename One::Info)) + 16;
  constexpr int kStaged = One::kStagedBytes > 0 ? One::kStaging * One::kStagedBytes + 127 : 0;
  constexpr int kMost = (227 * 1024 / kPerSm - static_cast<int>(sizeof(typename One::Info)) -
                         One::kTableBytes - kStaged) /
                        kEach;
  return kMost < 8 ? kMost : 8;
}
template <class Operand, int kM, int kN, int kBlocks, int kPerSm = 1, int kMost = 96>
using FullWgmmaTile =
    WgmmaTile<Operand, kM, kN, kBlocks, most_stages<Operand, kM, kN, kBlocks, kPerSm>(), kPerSm,
              false, kMost>;
template <class Operand, int kM, int kN, int kBlocks, int kPerSm = 1>
using DenseWgmmaTile = WgmmaTile<Operand, kM, kN, kBlocks,
                                 most_stages<Operand, kM, kN, kBlocks, kPerSm>(), kPerSm, true>;

/// Position in the ring of stages.
template <class Tile>
struct RingSlot {
  int slot = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++slot == Tile::kStages) slot = 0, parity ^= 1;
  }
};

/// The k-blocks that a CTA multiplies.
template <class Tile>
struct OwnBlocks {
  const WgmmaArgs& a;
  __device__ int begin() const {
    if constexpr (!Tile::kDense) return 0;
    return static_cast<int>(cluster_rank()) * a.split_blocks;
  }
  __device__ int end() const {
    if constexpr (!Tile::kDense) return a.blocks;
    return min(begin() + a.split_blocks, a.blocks);
  }
};

/// Shared memory of a CTA. `base` is aligned to 1,024 bytes.
template <class Tile>
struct WgmmaShared {
  uint8_t* base;
  __device__ uint8_t* stage(int slot) const { return base + slot * Tile::kStageBytes; }
  __device__ uint32_t full(int slot) const { return shared_address(base) + Tile::kFull + slot * 8; }
  __device__ uint32_t empty(int slot) const {
    return shared_address(base) + Tile::kEmpty + slot * 8;
  }
  __device__ uint32_t* table() const { return reinterpret_cast<uint32_t*>(base + Tile::kTable); }
  __device__ uint8_t* staged(int buffer) const {
    return base + Tile::kStaged + buffer * Tile::kStagedBytes;
  }
  __device__ typename Tile::Info& info(int at) const {
    return reinterpret_cast<typename Tile::Info*>(base + Tile::kInfo)[at];
  }
};

}  // namespace moracle::cuda
