// Epilogues of a GEMM: store, activate, or combine the finished rows.
#pragma once

#include "kernels/cpu/gemm/macro_kernel.h"
#include "kernels/grouped_linear.h"

namespace moracle::cpu {

/// Where the result rows go: row r at data + (row ? row[r] : r - first_row) · stride.
struct Destination {
  float* data;
  int64_t stride;
  const int32_t* row = nullptr;
  int64_t first_row = 0;

  float* at(int64_t r) const { return data + (row == nullptr ? r - first_row : row[r]) * stride; }
  /// Prefetches one or two cache lines of each of the rows [first, end) at `column`. The rows lie
  /// far apart, and a store miss waits as long as a load miss.
  void prefetch(int64_t first, int64_t end, int64_t column, bool two_lines) const {
    for (int64_t r = first; r < end; ++r) {
      const float* const from = at(r) + column;
      __builtin_prefetch(from);
      if (two_lines) __builtin_prefetch(from + kPanelRows);
    }
  }
};

/// A row tile whose sums are ready: `count` of its rows from `first` on.
struct FinishedRows {
  const PanelPair& pair;
  int64_t tile_row;      // the row tile's first row, counted from the run's first row
  StoreArgs results[2];  // for the whole row tile
  int first = 0, count = 0;

  /// The result of panel p for these rows, without a destination.
  StoreArgs result(int p) const {
    StoreArgs f = results[p];
    f.sum += first * kPanelRows;
    if (f.x_scale != nullptr) f.x_scale += first * f.x_scale_stride;
    f.rows = count;
    return f;
  }
  int64_t row() const { return tile_row + first; }
  int64_t column(int p) const { return (pair.panel + p * pair.distance) * kPanelRows; }
};

/// Stores rows.
struct StoreEpilogue {
  Destination to;

  void operator()(const FinishedRows& some) const;
};

/// Stores f(gate, up), or f(up). The panels of a gated pair are a gate's and its up's.
struct ActivateEpilogue {
  Destination to;
  const ActivationSpec& activation;
  bool gated;
  int64_t columns;  ///< of the result

  void operator()(const FinishedRows& some) const;
};

/// Adds each row with its weight to its token's row.
struct CombineEpilogue {
  Destination to;
  const float* weights;  ///< by slot; null: 1
  const int32_t* slot;   ///< of each row

  void operator()(const FinishedRows& some) const;
};

}  // namespace moracle::cpu
