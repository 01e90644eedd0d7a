#include "quant/quantize_weight.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <optional>

#include "base/finite.h"
#include "base/first_error.h"
#include "base/scalar.h"
#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "quant/activation.h"
#include "quant/codec.h"
#include "quant/encode_rows.h"

namespace moracle {
namespace {

bool is_block(const QuantKey& key) {
  return key.dtype == DType::kF8E4M3 && key.group.rows != 1 && key.group != GroupShape{};
}

// Widens rows [first, first + count) of a float matrix to f32.
void widen_rows(const CanonicalMatrix& floats, int64_t first, int64_t count, float* out) {
  visit_codec(floats.key.dtype, [&]<class Codec>() {
    const int64_t k = floats.k;
    for (int64_t r = first; r < first + count; ++r, out += k) {
      const std::byte* row = floats.codes.data() + r * floats.row_bytes();
      for (int64_t c = 0; c < k; ++c) out[c] = static_cast<float>(Codec::decode(row, c));
    }
  });
}

Error not_finite(const float* values, int64_t rows, int64_t cols, int64_t first_row) {
  const int64_t at =
      first_not_finite(DType::kF32, reinterpret_cast<const std::byte*>(values), rows * cols);
  return {ErrorKind::kBadFile, "", "weights", "finite numbers",
          str("element [", first_row + at / cols, ", ", at % cols, "] is ", values[at])};
}

// Minimum rows per thread: waking a thread takes as long as processing fewer rows.
int64_t least_rows(const CanonicalMatrix& floats) {
  return (1 << 16) / std::max<int64_t>(floats.k, 1) + 1;
}

// The scale of the whole tensor. Reads row after row: an f32 copy would take twice the source's
// size.
Result<WeightScale> tensor_scale(const CanonicalMatrix& floats, const QuantKey& key,
                                 ThreadPool& pool, int64_t first_row) {
  FirstError first_error;
  std::mutex mutex;
  float largest = 0;
  const auto look = [&](int64_t begin, int64_t end) {
    std::vector<float> row(floats.k);
    float of_rows = 0;
    for (int64_t r = begin; r < end; ++r) {
      widen_rows(floats, r, 1, row.data());
      const float in_row = largest_of(row.data(), 1, floats.k, floats.k);
      if (std::isnan(in_row))
        return first_error.keep(r, not_finite(row.data(), 1, floats.k, first_row + r));
      of_rows = std::max(of_rows, in_row);
    }
    const std::lock_guard lock(mutex);
    largest = std::max(largest, of_rows);
  };
  pool.split(floats.n, look, least_rows(floats));
  MORACLE_CHECK(std::move(first_error).status());
  return weight_scale(key, largest);
}

// Quantizes blocks of rows [begin, end). The result must have allocated scales and codes.
void quantize_blocks(const CanonicalMatrix& floats, const QuantKey& key,
                     const std::optional<WeightScale>& of_tensor, int64_t begin, int64_t end,
                     int64_t first_row, CanonicalMatrix& result, FirstError& first_error) {
  const int64_t k = floats.k, block_rows = result.key.group.rows, block_cols = result.group_cols();
  std::vector<float> values(std::min(block_rows, floats.n) * k);
  auto* codes = reinterpret_cast<uint8_t*>(result.storage.data());
  float* scales = result.scales.data() + begin * result.scale_cols();
  for (int64_t first = begin * block_rows; first < std::min(end * block_rows, floats.n);
       first += block_rows) {
    const int64_t rows = std::min(block_rows, floats.n - first);
    widen_rows(floats, first, rows, values.data());
    for (int64_t at = 0; at < k; at += block_cols) {
      const int64_t cols = std::min(block_cols, k - at);
      const float largest = largest_of(values.data() + at, rows, cols, k);
      if (std::isnan(largest))
        return first_error.keep(first, not_finite(values.data(), rows, k, first_row + first));
      const WeightScale scale = of_tensor ? *of_tensor : weight_scale(key, largest);
      *scales++ = scale.scale;
      for (int64_t r = 0; r < rows; ++r)
        encode_all(key, scale, values.data() + r * k + at, cols, codes + (first + r) * k + at);
    }
  }
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
  // At the minimum of scale_for, both formulas agree except for rounding.
  if (!is_block(key) || !(largest > 1e-10f)) return {scale_for(key, largest)};
  const float inverse = 448.0f * (1.0f / largest);
  return {1.0f / inverse, inverse};
}

Result<CanonicalMatrix> quantize_weight(const CanonicalMatrix& floats, const QuantKey& key,
                                        ThreadPool& pool, int64_t first_row) {
  const auto refuse = [](std::string need, std::string fact) {
    return Error{ErrorKind::kUnsupported, "", "weights", std::move(need), std::move(fact)};
  };
  if (!can_quantize_weight(key)) {
    return refuse("int8 per channel, fp8 per tensor, channel or block, or mxfp8",
                  "the request is for " + describe(Scheme{key, {}}));
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
  std::optional<WeightScale> of_tensor;
  if (whole) {
    MORACLE_TRY(of_tensor, tensor_scale(floats, key, pool, first_row));
  }
  FirstError first_error;
  const int64_t block_rows = result.key.group.rows;
  pool.split(
      result.scale_rows(),
      [&](int64_t begin, int64_t end) {
        quantize_blocks(floats, key, of_tensor, begin, end, first_row, result, first_error);
      },
      least_rows(floats) / block_rows + 1);
  MORACLE_CHECK(std::move(first_error).status());
  result.codes = result.storage;
  return result;
}

}  // namespace moracle
