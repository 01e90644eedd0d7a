// The two inner loops of weight quantization.
#pragma once

#include "quant/quantize_weight.h"

namespace moracle {

/// Largest magnitude of [rows, cols] values with row stride `stride`; NaN if a value is not finite.
float largest_of(const float* values, int64_t rows, int64_t cols, int64_t stride);

/// Codes of values with a common scale: the result of WeightScale::encode for each value.
void encode_all(const QuantKey& key, const WeightScale& scale, const float* from, int64_t count,
                uint8_t* to);

}  // namespace moracle
