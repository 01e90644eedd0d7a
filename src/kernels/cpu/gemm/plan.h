// Grouped GEMMs on layout vnni16 for every instruction set: the code that the rows cpu-avx2,
// cpu-avx512 and cpu-amx share. Their files choose the kernels and the arithmetic.
#pragma once

#include <optional>

#include "kernels/cpu/device/cpu_device.h"
#include "kernels/cpu/gemm/macro_kernel.h"
#include "kernels/kernels.h"

namespace moracle::cpu {

/// KernelPlan::product_bits where float activations are multiplied as one bf16 term.
inline constexpr int kBf16Bits = 8;
/// The same as int16: bits of the largest of a segment.
inline constexpr int kInt16Bits = 15;

/// The arithmetic of a matrix: int8 by int8 if the activations are int8 and groups are multiples of
/// `group_multiple` columns; bf16 if `bf16` and bf16 holds the weights exactly; else f32.
LineArithmetic arithmetic_for(const MatrixShape& shape, const Scheme& scheme, bool bf16,
                              int64_t group_multiple);

/// True if `kernels` multiply float activations in int16 by this matrix's codes.
bool has_int16(const MatrixShape& shape, const Scheme& scheme, const UkernelSet& kernels);

/// How rows and weights meet: `skinny` for experts with few rows, `main` for all others.
struct GemmForms {
  LineForm main;
  std::optional<LineForm> skinny;
  RowForm rows;
};
/// `one_term`: float activations may be rounded to bf16.
GemmForms forms_of(const MatrixShape& shape, const Scheme& scheme, LineArithmetic arithmetic,
                   const UkernelSet& kernels, bool deterministic, bool one_term);

/// The plan of a matrix for these kernels on `threads` threads; it may run from one token on.
KernelPlan plan_gemm(const KernelRequest& request, LineArithmetic arithmetic,
                     const UkernelSet& kernels, int threads);

Result<std::unique_ptr<GroupedLinear>> make_gemm(KernelWeights&& weights, const KernelPlan& plan,
                                                 LineArithmetic arithmetic,
                                                 const UkernelSet& kernels, Device& device);

}  // namespace moracle::cpu
