// Kernels of cuda-sm80, one list for each operand.
#pragma once

#include <span>

#include "kernels/cuda/tiles/arguments.h"

namespace moracle::cuda {

struct MmaKernel {
  void (*kernel)(GemmArgs, int stages);
  int rows, outputs;  ///< size of a tile
  int threads;
  int stage_bytes;  ///< of shared memory
  int most_stages;
  int per_sm;  ///< CTAs that one SM should run, for products of one beside copies of another
};

/// Returns how many stages a CTA takes, at least two: as many as let an SM with `sm_bytes` of
/// shared memory run `per_sm` CTAs, or, where not even two do, as many as let it run one CTA less.
/// `beside` is what each CTA takes besides its stages.
constexpr int mma_stages(const MmaKernel& kernel, int sm_bytes, int beside) {
  for (int ctas = kernel.per_sm; ctas > 0; --ctas) {
    const int stages = (sm_bytes / ctas - beside) / kernel.stage_bytes;
    if (stages >= 2) return stages < kernel.most_stages ? stages : kernel.most_stages;
  }
  return 2;
}

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
