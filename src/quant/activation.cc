#include "quant/activation.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/scalar.h"

namespace moracle {
namespace {

constexpr float kSmallest = 1e-10f;

// Largest magnitude; NaN if a value is not finite.
float largest_magnitude(const float* x, int64_t count) {
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    finite &= std::isfinite(x[i]);
  }
  return finite ? largest : NAN;
}

}  // namespace

int64_t group_cols(const QuantKey& key, int64_t cols) {
  return key.group.cols == GroupShape::kAll ? cols : key.group.cols;
}

int64_t num_groups(const QuantKey& key, int64_t cols) {
  const int64_t group = group_cols(key, cols);
  return group == 0 ? 0 : (cols + group - 1) / group;
}

bool can_quantize(const QuantKey& key) {
  return key == kInt8DynamicTokenSym || key == kFp8DynamicTokenSym || key == kMxfp8Dynamic ||
         key == kFp8DynamicTokenPowerOfTwo ||
         (key.group.cols > 0 && key == fp8_dynamic_group(key.group.cols));
}

float scale_for(const QuantKey& key, float largest) {
  if (std::isnan(largest)) return NAN;
  if (key.dtype == DType::kI8) return std::max(largest, kSmallest) / 127.0f;
  if (key.scale_dtype != DType::kF8E8M0) return std::max(largest, kSmallest) / 448.0f;
  // Reads the exponent of the next power of two from the bits. This is exact, unlike a logarithm.
  const auto bits = std::bit_cast<uint32_t>(largest / 448.0f);
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1 : 0);
  return e8m0_to_float(static_cast<uint8_t>(std::min(exponent, 254u)));
}

uint8_t encode(const QuantKey& key, float value, float scale) {
  if (key.dtype == DType::kI8) return quotient_to_int8(value / scale);
  return float_to_e4m3(value / scale);
}

float decode(const QuantKey& key, uint8_t code) {
  return key.dtype == DType::kI8 ? static_cast<float>(static_cast<int8_t>(code))
                                 : e4m3_to_float(code);
}

float quantize_int8_token(const float* x, int64_t cols, int8_t* codes) {
  const float scale = scale_for(kInt8DynamicTokenSym, largest_magnitude(x, cols));
  if (std::isnan(scale)) {
    std::fill(codes, codes + cols, int8_t{0});
    return scale;
  }
  for (int64_t i = 0; i < cols; ++i) codes[i] = static_cast<int8_t>(quotient_to_int8(x[i] / scale));
  return scale;
}

void quantize_row(const QuantKey& key, const float* x, int64_t cols, uint8_t* codes,
                  float* scales) {
  if (key == kInt8DynamicTokenSym) {
    *scales = quantize_int8_token(x, cols, reinterpret_cast<int8_t*>(codes));
    return;
  }
  const int64_t group = group_cols(key, cols);
  for (int64_t begin = 0; begin < cols; begin += group) {
    const int64_t count = std::min(group, cols - begin);
    const float scale = scale_for(key, largest_magnitude(x + begin, count));
    *scales++ = scale;
    for (int64_t i = begin; i < begin + count; ++i)
      codes[i] = std::isnan(scale) ? 0 : encode(key, x[i], scale);
  }
}

}  // namespace moracle
