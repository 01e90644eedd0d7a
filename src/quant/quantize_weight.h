// Quantizes weights. Loading and writing checkpoints use the same formulas (docs/numerics.md,
// "Quantizing weights").
#pragma once

#include "base/threads/thread_pool.h"
#include "moracle/quant.h"

namespace moracle {

/// True for int8 per channel, e4m3 per tensor, channel or block, and mxfp8; all symmetric.
bool can_quantize_weight(const QuantKey& key);

/// The factors of weight encoding: the stored scale, and the multiplier of the weights.
struct WeightScale {
  float scale = 1;
  float inverse = 0;  ///< 0: divide by the scale instead

  /// encode() of the quotient: ties to even, int8 within ±127, e4m3 saturates.
  uint8_t encode(const QuantKey& key, float weight) const;
};
/// The scale of weights with largest magnitude `largest`: scale_for() of the same format. Blocks of
/// e4m3 follow the roundings of transformers instead: inverse = 448 · (1 / largest), scale = 1 /
/// inverse. This reproduces its files bit for bit.
WeightScale weight_scale(const QuantKey& key, float largest);

/// Codes and scales of an f32, f16 or bf16 matrix; 16-bit floats are widened exactly. Groups go
/// from left to right. The last blocks or groups of rows and columns may be partial. A group of
/// zeros gets codes 0 and the scale of the smallest magnitude, never 0 or NaN. A per-tensor scale
/// is stored once per row, as in canonical form. The result includes the bias. The pool's threads
/// share the rows; the result does not depend on their number. Errors: kUnsupported for a key that
/// can_quantize_weight() rejects, or a matrix that is already quantized; kBadFile for a NaN or
/// infinite weight, with its row, counted from `first_row`, and column.
Result<CanonicalMatrix> quantize_weight(const CanonicalMatrix& floats, const QuantKey& key,
                                        ThreadPool& pool, int64_t first_row = 0);

}  // namespace moracle
