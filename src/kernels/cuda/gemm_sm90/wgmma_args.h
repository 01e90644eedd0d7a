// Arguments of a grouped GEMM on Hopper's tensor cores, and its kernels.
#pragma once

#include "kernels/cuda/gemm_sm80/mma_args.h"

namespace moracle::cuda {

/// As for mma_linear, except that rows of x lie in fragment order (layout/fragment_order.h), padded
/// with zeros to whole k-blocks of 32 columns, and 16-byte aligned. y is bf16 with an even number
/// of columns (y_in_pairs).
struct WgmmaArgs : MmaArgs {
  bool y_fragments;  ///< store y in fragment order, too
};

struct WgmmaKernel {
  void (*kernel)(WgmmaArgs);
  int rows, outputs;  ///< size of a tile
  int threads;
  int shared_bytes;
  int per_sm;          ///< blocks that one multiprocessor runs
  int x_group_blocks;  ///< groups of x scales must be multiples of so many k-blocks; 0: any
};

/// Kernels of one operand, from few rows to many, for the first tiles of kWgmmaTiles
/// (wgmma_plan.h).
using WgmmaKernels = std::span<const WgmmaKernel>;

// Weights and activations in these types; without the second type activations are bf16.
WgmmaKernels wgmma_bf16();
WgmmaKernels wgmma_f16();
WgmmaKernels wgmma_int8(bool in_groups);
WgmmaKernels wgmma_int4();
WgmmaKernels wgmma_fp8(bool in_groups);
WgmmaKernels wgmma_int8_int8();              ///< scales per row and token, without zero points
WgmmaKernels wgmma_fp8_fp8(bool in_groups);  ///< groups are multiples of 128 columns
WgmmaKernels wgmma_mxfp4();                  ///< exponents as scales
WgmmaKernels wgmma_mxfp8();                  ///< likewise, activations in bf16

}  // namespace moracle::cuda
