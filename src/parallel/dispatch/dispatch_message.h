// The message of one rank to another for a layer: the number of rows, their experts and weights,
// and the rows themselves where they go through host memory.
#pragma once

#include <span>

#include "moracle/base.h"

namespace moracle {

struct DispatchMessage {
  struct Head {
    int64_t rows = 0;
    int64_t slots = 0;  ///< ids of these rows that are not -1
  };
  /// In the message, in bytes.
  struct Offsets {
    int64_t ids, weights, rows, scales, bytes;
  };

  int64_t top_k = 0;
  int64_t row_bytes = 0;  ///< 0: an all-to-all of device memory sends the rows
  int64_t scale_bytes = 0;

  Offsets offsets(int64_t rows) const {
    // Rows and scales begin where any element type may.
    const auto aligned = [](int64_t at) { return (at + 15) / 16 * 16; };
    Offsets at{};
    at.ids = sizeof(Head);
    at.weights = at.ids + rows * top_k * 4;
    at.rows = aligned(at.weights + rows * top_k * 4);
    at.scales = aligned(at.rows + rows * row_bytes);
    at.bytes = aligned(at.scales + rows * scale_bytes);
    return at;
  }
  /// Bytes of ids, weights, rows and scales.
  int64_t payload(int64_t rows) const { return rows * (top_k * 8 + row_bytes + scale_bytes); }
  /// Writes all but rows and scales. `ids` and `weights` [head.rows, top_k].
  void write(const Head& head, const int32_t* ids, const float* weights, std::byte* to) const;
  /// The head of a message from `rank`. Errors: it is not a message of this layer.
  Result<Head> read_head(std::span<const std::byte> message, int64_t rank) const;
};

}  // namespace moracle
