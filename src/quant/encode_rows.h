// The two loops over every weight that is quantized.
#pragma once

#include "quant/quantize_weight.h"

namespace moracle {

/// Largest magnitude of [rows, cols] values that lie `stride` apart; NaN where one is not finite.
float largest_of(const float* values, int64_t rows, int64_t cols, int64_t stride);

/// Codes of values that share a scale: what WeightScale::encode gives for each.
void encode_all(const QuantKey& key, const WeightScale& scale, const float* from, int64_t count,
                uint8_t* to);

}  // namespace moracle
