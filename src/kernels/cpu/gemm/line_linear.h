// Grouped GEMMs on layout vnni16 for every instruction set: the code that the rows cpu-avx2,
// cpu-avx512 and cpu-amx share. Their files choose the instructions and the arithmetic.
#pragma once

#include "kernels/cpu/device/cpu_device.h"
#include "kernels/cpu/gemm/lines.h"
#include "kernels/kernels.h"

namespace moracle::cpu {

/// The arithmetic of a matrix: int8 by int8 if the activations are int8 and groups are multiples of
/// `group_multiple` columns; bf16 if `bf16` and bf16 holds the weights exactly; else f32.
LineArithmetic arithmetic_for(const MatrixShape& shape, const Scheme& scheme, bool bf16,
                              int64_t group_multiple);

/// True if the kernels of `isa` multiply float activations in int16 by this matrix's codes.
bool has_int16(const MatrixShape& shape, const Scheme& scheme, LineIsa isa);

/// The plan of a matrix for the kernels of `isa` on `threads` threads; it may run from one token
/// on.
KernelPlan plan_lines(const KernelRequest& request, LineArithmetic arithmetic, LineIsa isa,
                      int threads);

/// Makes the kernels of such a plan. Errors: a CPU without their instructions.
Result<std::unique_ptr<GroupedLinear>> make_lines(KernelWeights&& weights, const KernelPlan& plan,
                                                  Device& device);

}  // namespace moracle::cpu
