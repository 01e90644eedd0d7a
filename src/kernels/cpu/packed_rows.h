// Activation rows in the order of their experts, as the line kernels read them.
#pragma once

#include "base/thread_pool.h"
#include "kernels/cpu/lines.h"
#include "kernels/grouped_linear.h"

namespace moracle::cpu {

struct PackedRows {
  std::byte* values = nullptr;  ///< row r at values + r · stride, columns from k on 0
  int64_t stride = 0;           ///< bytes
  int64_t rest = 0;             ///< bytes to the second part of each value; 0: there is one
  int32_t* sums = nullptr;      ///< [rows, num_sums] Σ codes of each unit of int8 rows
  int64_t num_sums = 0;
  float* scales = nullptr;  ///< [rows, num_scales], where rows are codes
  int64_t num_scales = 0;
};

/// Columns that kernels read: the matrix's, up to whole tiles of this arithmetic.
int64_t read_cols(Arithmetic arithmetic, int64_t k);

/// True where values are packed in two parts (see LineBlock::x_rest): floats in bf16.
bool in_two_parts(Arithmetic arithmetic, const Scheme& scheme);

/// Bytes that `rows` packed rows take; sums are taken of `unit` columns; `num_scales` as in
/// Rows.
size_t packed_bytes(Arithmetic arithmetic, bool two_parts, int64_t k, int64_t unit, int64_t rows,
                    int64_t num_scales);

/// Gathers and converts the rows of `from` into `memory` (of packed_bytes, on 64 bytes), on all
/// threads where that is worth it. `num_rows` is the exact number.
PackedRows pack_rows(Arithmetic arithmetic, bool two_parts, const GroupedRows& from, int64_t k,
                     int64_t unit, int64_t num_rows, std::byte* memory, ThreadPool& pool);

}  // namespace moracle::cpu
