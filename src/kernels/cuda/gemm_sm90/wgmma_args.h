// Arguments of a grouped GEMM on Hopper's tensor cores, and its kernels.
#pragma once

#include "kernels/cuda/gemm_sm90/weight_tiles.h"

namespace moracle::cuda {

/// As for mma_linear, except that rows of x lie in fragment order (layout/fragment_order.h), padded
/// with zeros to whole k-blocks of 32 columns, and 16-byte aligned. y is bf16 or f32 with an
/// even number of columns, and its pairs are aligned.
struct WgmmaArgs : MmaArgs {
  bool y_fragments;  ///< store y in fragment order, too
  /// Not null: y holds e4m3 codes in fragment order, with these scales of groups of 128 columns.
  float* y_scales;
  // Dense and shared kernels: blocks of a cluster share the columns of a tile, this many k-blocks
  // each, whole stages.
  int cluster, part_blocks;
  WeightBoxes boxes;
};

/// Most blocks of such a cluster, whose number is a power of two.
inline constexpr int kMostWgmmaCluster = 8;

struct WgmmaKernel {
  void (*kernel)(WgmmaArgs);
  int rows, outputs;  ///< size of a tile
  int threads;
  int shared_bytes;
  int per_sm;        ///< blocks that one multiprocessor runs
  int stage_blocks;  ///< k-blocks of a stage
  int block_bytes;   ///< of a k-block
  int scale_bytes;   ///< of 16 scales; 0: no scales in groups
  bool loads_ahead;  ///< reads the plan of the rows, and weights, before the previous kernel ends
  bool quantizes;    ///< can quantize what it activates, in groups of 128 columns
};

/// Kernels of one operand.
struct WgmmaKernels {
  std::span<const WgmmaKernel> grouped;  ///< for the first tiles of kWgmmaTiles (wgmma_plan.h)
  /// For a linear layer, from the second of kWgmmaTiles on: each cluster has one tile. Only these
  /// write f32.
  std::span<const WgmmaKernel> dense;
  /// The first tile for few large experts: each cluster has one tile. Null: none is faster.
  const WgmmaKernel* shared;
};

/// Scales of weights and activations: of a row and a token, in groups, or in blocks of 128 x 128
/// and in groups.
enum class Fp8Scales { kRows, kGroups, kBlocks };

// Weights and activations in these types; without the second type activations are bf16.
WgmmaKernels wgmma_bf16();
WgmmaKernels wgmma_f16();
WgmmaKernels wgmma_int8(bool in_groups);
WgmmaKernels wgmma_int4();
WgmmaKernels wgmma_fp8(bool in_groups);
WgmmaKernels wgmma_int8_int8();                ///< scales per row and token, without zero points
WgmmaKernels wgmma_fp8_fp8(Fp8Scales scales);  ///< groups are multiples of 128 columns
WgmmaKernels wgmma_mxfp4();                    ///< exponents as scales
WgmmaKernels wgmma_mxfp8();                    ///< likewise, activations in bf16

}  // namespace moracle::cuda
