// Grouped GEMMs on layout vnni16, whatever the instruction set: what the rows cpu-avx2, cpu-avx512
// and cpu-amx share. Their files say which kernels multiply and in which arithmetic.
#pragma once

#include "kernels/cpu/device/cpu_device.h"
#include "kernels/cpu/gemm/lines.h"
#include "kernels/kernels.h"

namespace moracle::cpu {

/// How a matrix is multiplied: int8 by int8 where the activations are int8 and groups are of whole
/// `group_multiple` columns; bf16 where `bf16` and the weights are exact in it; else f32.
LineArithmetic arithmetic_for(const MatrixShape& shape, const Scheme& scheme, bool bf16,
                              int64_t group_multiple);

/// The plan of a matrix for these kernels on so many threads, which may run from one token on.
KernelPlan plan_lines(const KernelRequest& request, LineArithmetic arithmetic,
                      const LineKernels& kernels, int threads);

Result<std::unique_ptr<GroupedLinear>> make_lines(KernelWeights&& weights, const KernelPlan& plan,
                                                  LineArithmetic arithmetic,
                                                  const LineKernels& kernels, Device& device);

}  // namespace moracle::cpu
