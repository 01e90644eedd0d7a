// Kernels of cuda-sm80, one list for each operand.
#pragma once

#include <span>

#include "kernels/cuda/tiles/arguments.h"

namespace moracle::cuda {

struct MmaKernel {
  void (*kernel)(GemmArgs);
  int rows, outputs;  ///< size of a tile
  int threads;
  int shared_bytes;
};

/// Kernels of one operand, one for each of its tiles (mma_plan.h). cmake/CudaOperands.cmake lists
/// the operands; `groups`: products are scaled group by group; `minimums`: likewise, and the
/// groups' minimums are subtracted; `halves`: groups are an odd number of half k-blocks.
using MmaKernels = std::span<const MmaKernel>;
MmaKernels mma_bf16();
MmaKernels mma_f16();
MmaKernels mma_int8();
MmaKernels mma_int8_groups();
MmaKernels mma_int8_halves();
MmaKernels mma_int8_minimums();
MmaKernels mma_int8_halves_minimums();
MmaKernels mma_int4();
MmaKernels mma_int4_halves();
MmaKernels mma_int4_minimums();
MmaKernels mma_int4_halves_minimums();
MmaKernels mma_fp8();
MmaKernels mma_fp8_groups();
MmaKernels mma_fp8_halves();
MmaKernels mma_fp4();
MmaKernels mma_fp4_halves();
MmaKernels mma_fp8_fp8();
MmaKernels mma_fp8_fp8_groups();
MmaKernels mma_fp8_fp8_halves();
MmaKernels mma_int8_int8();
MmaKernels mma_int8_int8_groups();
MmaKernels mma_int8_int8_halves();
MmaKernels mma_int8_int8_minimums();
MmaKernels mma_int8_int8_halves_minimums();
MmaKernels mma_int4_int8();
MmaKernels mma_int4_int8_halves();
MmaKernels mma_int4_int8_minimums();
MmaKernels mma_int4_int8_halves_minimums();
MmaKernels mma_int4_fp8();
MmaKernels mma_int4_fp8_halves();
MmaKernels mma_int4_fp8_minimums();
MmaKernels mma_int4_fp8_halves_minimums();
MmaKernels mma_fp4_fp8();
MmaKernels mma_fp4_fp8_halves();
MmaKernels mma_fp4_int8();
MmaKernels mma_fp4_int8_halves();

}  // namespace moracle::cuda
