// Quantizing activations at run time. One definition per key, used by every CPU kernel and by the
// reference, so that a scheme's rounding cannot depend on the backend (docs/numerics.md).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace moracle {

/// kInt8DynamicTokenSym: scale = max(|x|, 1e-10) / 127; code = x / scale, ties to even, in [-128, 127].
/// A row that holds an infinity or NaN gets a scale that makes every product NaN, never a wild code.
/// Returns the scale.
inline float quantize_int8_token(const float* x, int64_t count, int8_t* codes) {
  float largest = 1e-10f;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    finite &= std::isfinite(x[i]);
  }
  if (!finite) {
    std::fill(codes, codes + count, int8_t{0});
    return NAN;
  }
  const float scale = largest / 127.0f;
  // Adding 1.5 * 2^23 rounds |v| < 2^22 to an integer, ties to even; unlike a call to nearbyint it
  // becomes two vector additions on every CPU.
  constexpr float kRound = 12582912.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float code = (x[i] / scale + kRound) - kRound;
    codes[i] = static_cast<int8_t>(std::clamp(code, -128.0f, 127.0f));
  }
  return scale;
}

}  // namespace moracle
