// The types that the products of a scheme multiply, and how products are scaled.
//
// MXFP8 by MXFP8 at the rate of fp8: the exponents of a row move into its codes. Plain C++, so that
// builds without CUDA can plan it, too.
//
// The tensor core adds fp8 products without scales, so all columns of a row must share one. Let E
// be the largest exponent of a row's groups. A code q with exponent e becomes e4m3(q · 2^(e - E)),
// and the row's scale is 2^E. e4m3 is a floating-point format: only values below 2^-6 · 2^E change,
// which are rounded to multiples of 2^-9 · 2^E. Activations are quantized with one power of two per
// token, which gives the same values down to the same limit. With exponents as small as the values
// allow, the largest value of a row is above 224 · 2^E. The rounding error is then below 2^-17 of
// it. The tensor core itself loses more, because it adds with 13 fraction bits.
#pragma once

#include "oracle/kernel_plan.h"

namespace moracle::cuda {

/// True if products with weights of this shape in this scheme are scaled group by group.
bool scales_in_groups(const MatrixShape& shape, const Scheme& scheme);

/// True if wgmma multiplies the weights as values with kWgmmaValueBits significant bits: those
/// whose groups have minimums, or are an odd number of half k-blocks, except NVFP4.
bool wgmma_multiplies_values(const MatrixShape& shape);
inline constexpr int kWgmmaValueBits = 16;

/// The types that mma.sync multiplies.
CudaProducts mma_products(const Scheme& scheme);

/// True if both matrices of a layer can have one exponent per row: rows of whole blocks of 32
/// columns, at least four. `first`: the shape is that of GEMM 1, with gates, else of GEMM 2.
bool has_row_exponents(const MatrixShape& shape, const Scheme& scheme, bool first);

/// The shape of weights whose exponents have moved into the codes.
MatrixShape with_row_exponents(MatrixShape shape);

/// The scheme in which the kernels of cuda-sm90 multiply experts: that of the layer, but where the
/// exponents of the weights `shape` have moved, activations have one power of two per token.
Scheme product_scheme(const MatrixShape& shape, Scheme scheme);

/// True if the products have one exponent per row of weights.
bool has_one_exponent(const Scheme& products);

/// Activations of such products are off by up to 2^-kRowExponentBits of the largest of the row.
inline constexpr int kRowExponentBits = 16;

}  // namespace moracle::cuda
