#pragma once

#include "moracle/base.h"

namespace moracle {

/// Activations as a GEMM reads them: floats, or codes with their scales.
struct Rows {
  Matrix values;
  float* scales = nullptr;  ///< [rows, num_scales]; nothing for floats
  int64_t num_scales = 0;   ///< per row

  /// The first `count` rows.
  Rows first(int64_t count) const { return {values.slice(0, count), scales, num_scales}; }
};

/// Which rows go to which expert. Arrays of the device's memory.
struct RowPlan {
  /// [num_experts + 1]: rows of expert e are [offsets[e], offsets[e + 1]).
  int32_t* expert_offsets = nullptr;
  int32_t* row_token = nullptr;  ///< [num_tokens * top_k]: which token a row reads
  int32_t* slot_row = nullptr;   ///< [num_tokens * top_k]: row of token t's j-th expert, -1: none
  int32_t* row_slot = nullptr;   ///< [num_tokens * top_k]: t · top_k + j of a row
};

}  // namespace moracle
