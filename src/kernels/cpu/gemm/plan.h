// Plans of grouped GEMMs on layout vnni16: shared by backends cpu, cpu-avx2, cpu-avx512 and
// cpu-amx. Their files choose the instruction sets and the arithmetic.
#pragma once

#include "kernels/cpu/gemm/pack_rows.h"
#include "kernels/kernels.h"

namespace moracle::cpu {

/// The arithmetic of a matrix: int8 by int8 if the activations are int8 and groups are multiples of
/// `group_multiple` columns; bf16 if `bf16` and bf16 holds the weights exactly; else f32.
Operand arithmetic_for(const MatrixShape& shape, const Scheme& scheme, bool bf16,
                       int64_t group_multiple);

/// True if the kernels of `isa` multiply float activations in int16 by this matrix's codes.
bool has_int16(const MatrixShape& shape, const Scheme& scheme, DotIsa isa);

/// The plan of a matrix for the kernels of `isa` on `threads` threads, for one token and more.
KernelPlan plan_gemm(const KernelRequest& request, Operand arithmetic, DotIsa isa, int threads);

/// The format of packed rows for the kernels of a plan.
RowForm row_form(const MatrixShape& shape, const Scheme& scheme,
                 const std::vector<PlannedKernel>& planned, const UkernelSet& kernels);

/// Makes the kernels of a plan. Errors: a CPU without their instructions.
Result<std::unique_ptr<GroupedLinear>> make_gemm(KernelWeights&& weights, const KernelPlan& plan,
                                                 Device& device);

}  // namespace moracle::cpu
