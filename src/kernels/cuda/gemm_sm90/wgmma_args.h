// Arguments of a grouped GEMM on Hopper's tensor cores, and its kernels.
#pragma once

#include <span>

#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/tiles/arguments.h"

namespace moracle::cuda {

/// Panels of a TMA tile of weights.
inline constexpr int kTmaPanels = 8;

struct WeightTiles {
  TensorMap codes;     ///< [expert][panel][bytes of the panel / 8]
  TensorMap columns;   ///< the same codes: [expert][k-block][panel][bytes of a k-block / 8]
  TensorMap scales;    ///< [expert][panel][group · 16]
  TensorMap zeros;     ///< [expert][panel][group · 16]
  TensorMap minimums;  ///< likewise
  int groups;          ///< of a TMA tile of scales: the most that a stage touches
};

/// Describes the weights of `args` for stages of `stage_blocks` k-blocks. `block_bytes` is the size
/// of a k-block, `scale_bytes` of 16 scales; 0: no scales in groups.
Result<WeightTiles> weight_tiles(const GemmArgs& args, int stage_blocks, int block_bytes,
                                 int scale_bytes);

/// As for mma_linear, except that rows of x lie in fragment order (layout/fragment_order.h), padded
/// with zeros to whole k-blocks of 32 columns, and 16-byte aligned. y is bf16 or f32 with an
/// even number of columns, and its pairs are aligned.
struct WgmmaArgs : GemmArgs {
  bool y_fragments;  ///< store y in fragment order, too
  /// Not null: y holds e4m3 codes in fragment order, with these scales of groups of 128 columns.
  float* y_scales;
  // Dense and shared kernels: CTAs of a cluster split K of a tile, this many k-blocks
  // each, whole stages.
  int cluster, split_blocks;
  WeightTiles tma;
  TensorMap rows;  ///< x as [row][byte], for kernels that load rows in order
  /// Rows of scales by group (scale_rows.h). 0: scales by row.
  int x_scale_rows, y_scale_rows;
};

/// Most CTAs of such a cluster, whose number is a power of two.
inline constexpr int kMostWgmmaCluster = 8;

struct WgmmaKernel {
  void (*kernel)(WgmmaArgs);
  int rows, outputs;  ///< size of a tile
  int threads;
  int shared_bytes;
  int per_sm;        ///< CTAs that one SM runs
  int stage_blocks;  ///< k-blocks of a stage
  int block_bytes;   ///< of a k-block
  int scale_bytes;   ///< of 16 scales; 0: no scales in groups
  bool loads_ahead;  ///< reads the plan of the rows, and weights, before the previous kernel ends
  bool quantizes;    ///< can quantize activated outputs, in groups of 128 columns
  int box_rows;      ///< of the TMA tiles of x, which args.rows describes; 0: cp.async gathers x
  bool scales_by_group;  ///< scales of x lie as [group][row] (scale_rows.h)
};

/// Kernels of one operand.
struct WgmmaKernels {
  std::span<const WgmmaKernel> grouped;  ///< by WgmmaTiles (wgmma_plan.h)
  /// For a linear layer, tiles of 32, 64 and 128 rows: each cluster has one tile. Kernels of
  /// `grouped` write bf16 only.
  std::span<const WgmmaKernel> dense;
  /// The first tile for few large experts: each cluster has one tile. Null: none is faster.
  const WgmmaKernel* split_k = nullptr;
  /// For matrices without gates whose rows are contiguous for each tile. Null: those of `grouped`.
  const WgmmaKernel *plain_128 = nullptr, *plain_two_144 = nullptr, *plain_most = nullptr;
  /// Instead of those without gates that take scales by group, where they lie by row.
  const WgmmaKernel* by_row = nullptr;
  /// For gates whose rows are contiguous for each tile, with scales by group, instead of the
  /// kernels of `grouped` that quantize. Null: none.
  const WgmmaKernel* ordered = nullptr;
};

// Weights and activations in these types; without the second type activations are bf16.
WgmmaKernels wgmma_bf16();
WgmmaKernels wgmma_f16();
WgmmaKernels wgmma_int8();
WgmmaKernels wgmma_int8_groups();
WgmmaKernels wgmma_int8_blocks();  ///< each k-block is a group; without zero points
WgmmaKernels wgmma_int8_values();  ///< with minimums, or in groups of half k-blocks
WgmmaKernels wgmma_int4();
WgmmaKernels wgmma_int4_blocks();  ///< like wgmma_int8_blocks
WgmmaKernels wgmma_int4_values();  ///< like wgmma_int8_values
WgmmaKernels wgmma_fp8();
WgmmaKernels wgmma_fp8_groups();
WgmmaKernels wgmma_int8_int8();  ///< scales per row and token, without zero points
WgmmaKernels wgmma_fp8_fp8();
WgmmaKernels wgmma_fp8_fp8_groups();        ///< multiples of 128 columns
WgmmaKernels wgmma_fp8_fp8_tokens();        ///< the same, activations with one scale per token
WgmmaKernels wgmma_fp8_fp8_blocks();        ///< weights in blocks of 128 x 128
WgmmaKernels wgmma_fp8_fp8_blocks_by_32();  ///< the same for gates, 32 outputs share a scale
WgmmaKernels wgmma_int4_fp8();              ///< multiples of 128 columns, without zero points
WgmmaKernels wgmma_int4_fp8_zeros();        ///< the same with zero points
WgmmaKernels wgmma_int4_fp8_wide_groups();  ///< other groups, activations in bf16
WgmmaKernels wgmma_int4_fp8_wide_values();  ///< likewise, like wgmma_int8_values
WgmmaKernels wgmma_nvfp4_fp8_wide();        ///< likewise, like wgmma_nvfp4
WgmmaKernels wgmma_fp4_fp8();               ///< groups of 32 columns, exponents as scales
WgmmaKernels wgmma_nvfp4();                 ///< groups of half k-blocks, with factors of rows
WgmmaKernels wgmma_mxfp4();                 ///< exponents as scales
WgmmaKernels wgmma_mxfp8();                 ///< likewise, activations in bf16

}  // namespace moracle::cuda
