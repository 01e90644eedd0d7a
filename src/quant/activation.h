// Quantizing activations at run time. One definition per key, used by every CPU kernel and by the
// reference, so that a scheme's rounding cannot depend on the backend (docs/numerics.md).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "moracle/quant.h"

namespace moracle {

/// Columns that share a scale in a row of `cols`, and how many scales a row has.
int64_t group_cols(const QuantKey& key, int64_t cols);
int64_t num_groups(const QuantKey& key, int64_t cols);

/// True for the keys that quantize_row knows: dynamic int8 per token, fp8 per token or group,
/// mxfp8.
bool can_quantize(const QuantKey& key);

/// The scale for a group whose largest magnitude is `largest`:
///   int8   max(largest, 1e-10) / 127
///   fp8    max(largest, 1e-10) / 448
///   mxfp8  2^ceil(log2(largest / 448)), exponent from -127 to 127
float scale_for(const QuantKey& key, float largest);

/// value / scale as an int8 code: ties to even, clamped to [-128, 127].
inline uint8_t quotient_to_int8(float quotient) {
  // Adding 1.5 * 2^23 rounds |v| < 2^22 to an integer, ties to even, which then lies in the lowest
  // bits; unlike a call to nearbyint it becomes vector instructions on every CPU.
  const float clamped = std::min(std::max(quotient, -128.0f), 127.0f);
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(clamped + 12582912.0f));
}

/// One code: value / scale, ties to even; int8 clamped to [-128, 127], fp8 saturating at 448.
uint8_t encode(const QuantKey& key, float value, float scale);
/// The number that a code stands for, without its scale.
float decode(const QuantKey& key, uint8_t code);

/// Codes [cols] and scales [num_groups] of one row. A group that holds an infinity or NaN gets
/// codes 0 and a NaN scale: every product with it is NaN, never a wild number.
void quantize_row(const QuantKey& key, const float* x, int64_t cols, uint8_t* codes, float* scales);

/// kInt8DynamicTokenSym alone; returns the scale.
float quantize_int8_token(const float* x, int64_t cols, int8_t* codes);

}  // namespace moracle
