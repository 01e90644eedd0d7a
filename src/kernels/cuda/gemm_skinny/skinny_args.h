// Arguments of skinny GEMMs, and the kernels of each operand.
#pragma once

#include "kernels/cuda/gemm_skinny/skinny_plan.h"
#include "kernels/cuda/tiles/arguments.h"

namespace moracle::cuda {

struct SkinnyArgs {
  GemmArgs matrix;
  SkinnySplit split;
};

/// Kernels of an operand for up to 32 and up to 64 tokens.
struct SkinnyKernels {
  void (*by_tokens[2])(SkinnyArgs);
};
SkinnyKernels skinny_int8();
SkinnyKernels skinny_int8_groups();
SkinnyKernels skinny_int4();
SkinnyKernels skinny_fp8();
SkinnyKernels skinny_fp8_groups();
SkinnyKernels skinny_fp8_fp8();
SkinnyKernels skinny_fp8_fp8_groups();
SkinnyKernels skinny_int8_int8();
SkinnyKernels skinny_int4_fp8();

}  // namespace moracle::cuda
