// The weighted sums of experts' rows, added while they travel to the ranks of their tokens.
#pragma once

#include "moracle/parallel.h"
#include "quant/rows.h"

namespace moracle {

/// Memory for the rows of each token in the order in which they are added.
struct RowOrder {
  int32_t* rows = nullptr;   ///< [num_tokens, top_k]
  float* weights = nullptr;  ///< likewise
};

class RowSums {
 public:
  virtual ~RowSums() = default;
  RowSums() = default;
  RowSums(const RowSums&) = delete;
  RowSums& operator=(const RowSums&) = delete;
  /// True for tokens of a rank that `add` can give their sums, and for which it takes less time
  /// than Ops::combine and Exchange::reduce_scatter.
  virtual bool serves(const Matrix& mine) const = 0;
  /// Both in one, with the same bits: each rank adds its rows of every token, and `mine` becomes
  /// the sum over ranks for the tokens [rank * mine.rows, …). Requires serves, and rows in the
  /// dtype of `mine`.
  virtual Status add(const ExpertRows& rows, const RowOrder& order, const Matrix& mine,
                     Stream stream) = 0;
};

}  // namespace moracle
