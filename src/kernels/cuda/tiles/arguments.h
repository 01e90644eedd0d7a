// Arguments of a grouped GEMM on tensor cores, and its kernels.
#pragma once

#include <span>

#include "moracle/base.h"

namespace moracle::cuda {

/// k-blocks of 32 columns that share a scale.
struct MmaGroups {
  int blocks;
  int count;         ///< scales of a row
  unsigned inverse;  ///< 2^32 / blocks, rounded up; 0 for one k-block
};

struct MmaArgs {
  // Weights of expert e, in layout mma16, begin at base + e · expert_bytes.
  const uint8_t* base;
  int64_t expert_bytes, scales_at, zeros_at, bias_at;
  int num_experts, panels, blocks;  // panels of 16 outputs, k-blocks of 32 columns
  // If gated, the first half of the panels holds the gates of the second half. The kernel stores
  // silu(min(gate, limit), sharpness) · (clamp(up, ±limit) + offset).
  bool gated;
  float sharpness, limit, offset;
  MmaGroups weight_groups, x_groups;
  bool scale_is_exponent, has_zeros, has_bias;
  int close_blocks;  // k-blocks after which a sum is scaled
  // Activations: bytes from one row to the next, and bytes of a row that are read.
  const uint8_t* x;
  int64_t x_stride;
  int x_bytes;
  bool x_aligned;  // every row is 16-byte aligned
  const float* x_scales;
  const int32_t *row_index, *offsets;
  int num_rows;
  Matrix y;
  int columns;      // columns of y
  bool y_in_pairs;  // y is bf16, and its rows are 4-byte aligned
};

struct MmaKernel {
  void (*kernel)(MmaArgs);
  int rows, outputs;  ///< size of a tile
  int threads;
  int shared_bytes;
};

/// Kernels of one operand, one for each of its tiles (mma_plan.h).
using MmaKernels = std::span<const MmaKernel>;
MmaKernels mma_bf16();
MmaKernels mma_f16();
MmaKernels mma_int8(bool in_groups);
MmaKernels mma_int4();
MmaKernels mma_fp8(bool in_groups);
MmaKernels mma_fp4();
MmaKernels mma_fp8_fp8(bool in_groups);
MmaKernels mma_int8_int8(bool in_groups);
MmaKernels mma_int4_int8();
MmaKernels mma_fp4_int8();

}  // namespace moracle::cuda
