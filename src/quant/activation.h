// Quantizes activations at run time. Every CPU kernel and the reference use the same definition per
// key, so rounding does not depend on the backend (docs/numerics.md).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "moracle/quant.h"

namespace moracle {

/// Columns per scale in a row of `cols` columns, and scales per row.
int64_t group_cols(const QuantKey& key, int64_t cols);
int64_t num_groups(const QuantKey& key, int64_t cols);

/// fp8 per token whose scale is a power of two, as that of mxfp8 for a group of 32.
inline constexpr QuantKey kFp8DynamicTokenPowerOfTwo{DType::kF8E4M3, kPerRow, true, true,
                                                     DType::kF8E8M0};

/// True for the keys that quantize_row supports: dynamic int8 per token, fp8 per token or group,
/// mxfp8, powers of two per token.
bool can_quantize(const QuantKey& key);

/// The scale of a group with largest magnitude `largest`:
///   int8   max(largest, 1e-10) / 127
///   fp8    max(largest, 1e-10) / 448
///   mxfp8  2^ceil(log2(largest / 448)), exponent from -127 to 127
float scale_for(const QuantKey& key, float largest);

/// Rounds value / scale to an int8 code: ties to even, clamped to [-128, 127].
inline uint8_t quotient_to_int8(float quotient) {
  // Adding 1.5 * 2^23 rounds |v| < 2^22 to an integer in the lowest bits, ties to even. Unlike a
  // call to nearbyint, it vectorizes on every CPU.
  const float clamped = std::min(std::max(quotient, -128.0f), 127.0f);
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(clamped + 12582912.0f));
}

/// Encodes value / scale, ties to even; int8 is clamped to [-128, 127], fp8 saturates at 448.
uint8_t encode(const QuantKey& key, float value, float scale);
/// Decodes a code without applying its scale.
float decode(const QuantKey& key, uint8_t code);

/// Codes [cols] and scales [num_groups] of one row. A group with an infinity or NaN gets codes 0
/// and a NaN scale. Every product with this group is then NaN, never an arbitrary number.
void quantize_row(const QuantKey& key, const float* x, int64_t cols, uint8_t* codes, float* scales);

/// The same for kInt8DynamicTokenSym only; returns the scale.
float quantize_int8_token(const float* x, int64_t cols, int8_t* codes);

}  // namespace moracle
