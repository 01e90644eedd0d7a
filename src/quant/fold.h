// Folds 4-bit weights into e4m3 codes of the same values: twice the bytes, and fp8 kernels multiply
// them without unpacking.
//
// Integers up to 16 and the values of e2m1 are exact in e4m3, so groups of 128 columns, or rows,
// keep their scales. MXFP4 has a power of two for 32 columns, and the kernels add 128 columns
// before they scale: the exponents move into the codes. With E the largest exponent of a row, a
// code q with exponent e becomes q * 2^(6 + e - E), and the row's scale is 2^(E - 6). All codes are
// exact down to e = E - 14; groups of zeros do not count.
#pragma once

#include "base/threads/thread_pool.h"
#include "moracle/layer.h"
#include "moracle/quant.h"

namespace moracle {

/// Columns that fp8 kernels add before they scale a sum.
inline constexpr int64_t kFoldedColumns = 128;

/// The scheme of the folded weights. Errors (kUnsupported): other weights or activations; groups
/// that 128 columns do not consist of; act-order; minimums; stored activation scales.
Result<Scheme> folded_scheme(const MatrixShape& shape, const Scheme& scheme);

/// Changes weights to the key of folded_scheme. Errors (kUnsupported), with the row: MXFP4 whose
/// exponents differ by too much, or whose scales are not finite; zero points beyond 8.
Result<CanonicalMatrix> fold(CanonicalMatrix&& matrix, const QuantKey& key, ThreadPool& pool);

}  // namespace moracle
