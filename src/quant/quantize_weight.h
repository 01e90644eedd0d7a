// Quantizing weights: the formulas in one place, for loading and for writing checkpoints
// (docs/numerics.md, "Quantizing weights").
#pragma once

#include "base/thread_pool.h"
#include "moracle/quant.h"

namespace moracle {

/// True for int8 per channel, e4m3 per tensor, channel or block, and mxfp8; all symmetric.
bool can_quantize_weight(const QuantKey& key);

/// How weights become codes: by the scale that is stored, and by what they are multiplied with.
struct WeightScale {
  float scale = 1;
  float inverse = 0;  ///< 0: divide by the scale instead

  /// encode() of the quotient: ties to even, int8 within ±127, e4m3 saturating.
  uint8_t encode(const QuantKey& key, float weight) const;
};
/// Of weights whose largest magnitude is `largest`: scale_for() of the same format, but for blocks
/// of e4m3 the roundings by which transformers arrives at largest / 448: inverse = 448 · (1 /
/// largest), scale = 1 / inverse. Files that it wrote come out bit for bit.
WeightScale weight_scale(const QuantKey& key, float largest);

/// Codes and scales of a matrix of f32, f16 or bf16, which are widened exactly; groups lie from
/// left to right. The last rows and columns may fill their block or group only in part. Zeros alone
/// give codes 0 and the scale of the smallest magnitude, never 0 or NaN. A scale of the whole
/// tensor comes as one per row, as canonical form has it. A bias goes along. The rows are shared by
/// the pool's threads, and the result is the same however many there are. Errors: kUnsupported, a
/// key that can_quantize_weight() does not know, or a matrix that is quantized already; kBadFile,
/// a weight that is NaN or infinite, with its row, counted from `first_row`, and column.
Result<CanonicalMatrix> quantize_weight(const CanonicalMatrix& floats, const QuantKey& key,
                                        ThreadPool& pool, int64_t first_row = 0);

}  // namespace moracle
