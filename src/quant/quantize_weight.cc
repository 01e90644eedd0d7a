#include "quant/quantize_weight.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "quant/activation.h"
#include "quant/codec.h"

namespace moracle {
namespace {

bool is_block(const QuantKey& key) {
  return key.dtype == DType::kF8E4M3 && key.group.rows != 1 && key.group != GroupShape{};
}

// Rows [first, first + count) of floats, widened to f32.
void widen_rows(const CanonicalMatrix& floats, int64_t first, int64_t count, float* out) {
  visit_codec(floats.key.dtype, [&]<class Codec>() {
    for (int64_t r = first; r < first + count; ++r) {
      const std::byte* row = floats.codes.data() + r * floats.row_bytes();
      for (int64_t c = 0; c < floats.k; ++c) *out++ = static_cast<float>(Codec::decode(row, c));
    }
  });
}

// Largest magnitude of [rows, cols] values that lie `stride` apart; NaN where one is not finite.
float largest_of(const float* values, int64_t rows, int64_t cols, int64_t stride) {
  float largest = 0;
  bool finite = true;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const float magnitude = std::fabs(values[r * stride + c]);
      largest = std::max(largest, magnitude);
      finite &= magnitude <= std::numeric_limits<float>::max();
    }
  }
  return finite ? largest : NAN;
}

Error not_finite(const float* values, int64_t rows, int64_t cols, int64_t first_row) {
  const float* bad = std::find_if_not(values, values + rows * cols,
                                      [](float value) { return std::isfinite(value); });
  const int64_t at = bad - values;
  return {ErrorKind::kBadFile, "", "weights", "finite numbers",
          str("element [", first_row + at / cols, ", ", at % cols, "] is ", *bad)};
}

// A scale of the whole tensor, from rows read in turn: a copy in f32 would be twice the source.
Result<WeightScale> tensor_scale(const CanonicalMatrix& floats, const QuantKey& key) {
  std::vector<float> row(floats.k);
  float largest = 0;
  for (int64_t r = 0; r < floats.n; ++r) {
    widen_rows(floats, r, 1, row.data());
    const float in_row = largest_of(row.data(), 1, floats.k, floats.k);
    if (std::isnan(in_row)) return not_finite(row.data(), 1, floats.k, r);
    largest = std::max(largest, in_row);
  }
  return weight_scale(key, largest);
}

}  // namespace

bool can_quantize_weight(const QuantKey& key) {
  const bool known = key == kInt8StaticChannelSym || key == kFp8StaticTensorSym ||
                     key == kFp8StaticChannelSym || key == kMxfp8Static;
  return known || (key.group.rows > 0 && key.group.cols > 0 &&
                   key == fp8_static_block(key.group.rows, key.group.cols));
}

uint8_t WeightScale::encode(const QuantKey& key, float weight) const {
  return inverse > 0 ? moracle::encode(key, weight * inverse, 1.0f)
                     : moracle::encode(key, weight, scale);
}

WeightScale weight_scale(const QuantKey& key, float largest) {
  // At the floor of scale_for the two ways give the same numbers but for roundings.
  if (!is_block(key) || !(largest > 1e-10f)) return {scale_for(key, largest)};
  const float inverse = 448.0f * (1.0f / largest);
  return {1.0f / inverse, inverse};
}

Result<CanonicalMatrix> quantize_weight(const CanonicalMatrix& floats, const QuantKey& key) {
  const auto refuse = [](std::string need, std::string fact) {
    return Error{ErrorKind::kUnsupported, "", "weights", std::move(need), std::move(fact)};
  };
  if (!can_quantize_weight(key)) {
    return refuse("int8 per channel, fp8 per tensor, channel or block, or mxfp8",
                  "asked for is " + describe(Scheme{key, {}}));
  }
  if (floats.key.quantized()) return refuse("floats", "they are " + name(Scheme{floats.key, {}}));

  const bool whole = key.group == GroupShape{};
  CanonicalMatrix result;
  result.n = floats.n;
  result.k = floats.k;
  result.key = key;
  if (whole) result.key.group = kPerRow;
  result.bias = floats.bias;
  result.storage.resize(result.n * result.row_bytes());
  result.scales.resize(result.scale_rows() * result.scale_cols());
  WeightScale of_tensor;
  if (whole) {
    const Result<WeightScale> scale = tensor_scale(floats, key);
    if (!scale) return scale.error();
    of_tensor = *scale;
  }
  const int64_t k = floats.k, block_rows = result.key.group.rows, block_cols = result.group_cols();
  std::vector<float> values(std::min(block_rows, floats.n) * k);
  auto* codes = reinterpret_cast<uint8_t*>(result.storage.data());
  float* scales = result.scales.data();
  for (int64_t first = 0; first < floats.n; first += block_rows) {
    const int64_t rows = std::min(block_rows, floats.n - first);
    widen_rows(floats, first, rows, values.data());
    for (int64_t begin = 0; begin < k; begin += block_cols) {
      const int64_t cols = std::min(block_cols, k - begin);
      const float largest = largest_of(values.data() + begin, rows, cols, k);
      if (std::isnan(largest)) return not_finite(values.data(), rows, k, first);
      const WeightScale scale = whole ? of_tensor : weight_scale(key, largest);
      *scales++ = scale.scale;
      for (int64_t r = 0; r < rows; ++r) {
        const float* from = values.data() + r * k + begin;
        uint8_t* to = codes + (first + r) * k + begin;
        for (int64_t c = 0; c < cols; ++c) to[c] = scale.encode(key, from[c]);
      }
    }
  }
  result.codes = result.storage;
  return result;
}

}  // namespace moracle
