#pragma once

#include "moracle/base.h"

namespace moracle {

/// GEMM input activations: floats, or codes with scales.
struct Rows {
  Matrix values;
  float* scales = nullptr;  ///< [rows, num_scales]; null for floats
  int64_t num_scales = 0;   ///< per row

  /// The first `count` rows.
  Rows first(int64_t count) const { return {values.slice(0, count), scales, num_scales}; }
};

/// Assigns rows to experts. The arrays are in device memory.
struct RowPlan {
  /// [num_experts + 1]: expert e has rows [offsets[e], offsets[e + 1]).
  int32_t* expert_offsets = nullptr;
  int32_t* row_token = nullptr;  ///< [num_tokens * top_k]: the token that a row reads
  int32_t* slot_row = nullptr;   ///< [num_tokens * top_k]: row of token t's j-th expert; -1: none
  int32_t* row_slot = nullptr;   ///< [num_tokens * top_k]: t · top_k + j of each row
};

/// Outputs of the experts, before the weighted sum of each token.
struct ExpertRows {
  Matrix values;
  const int32_t* slot_row = nullptr;  ///< [num_tokens, top_k]: row of each slot; -1: none
  const float* weights = nullptr;     ///< likewise; null: each is 1
  int64_t num_tokens = 0, top_k = 0;
};

}  // namespace moracle
