// Plans backends opencl-lines and opencl-vectors. Plain C++, so that builds without OpenCL can plan
// them, too.
#pragma once

#include "moracle/oracle.h"

namespace moracle::opencl {

/// True if sums of codes stay integers to the end of the row: one scale for all columns on both
/// sides.
bool sums_whole_rows(const MatrixShape& shape, const Scheme& scheme);

/// Up to this many rows per expert, in the mean, few_rows.cl is faster than many_rows.cl. Measured
/// on an H100 (bench/lab/opencl.md).
inline constexpr int64_t kFewRows = 24;

/// Name of a kernel in plans.
std::string few_rows_name(const MatrixShape& shape, const Scheme& scheme);
std::string many_rows_name(const MatrixShape& shape, const Scheme& scheme);
std::string vectors_name(const MatrixShape& shape, const Scheme& scheme);

}  // namespace moracle::opencl
