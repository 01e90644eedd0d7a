#include "models/gguf/store_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/first_error.h"
#include "base/scalar.h"
#include "base/text.h"
#include "base/try.h"
#include "quant/blocks/encode_blocks.h"
#include "quant/codec.h"

namespace moracle {
namespace {

// Minimum values per thread: waking a thread takes as long as converting this many.
constexpr int64_t kLeastValues = 1 << 12;

Status store_row(const float* values, int64_t k, DType type, std::byte* to) {
  if (is_gguf_block(type)) return encode_blocks(type, values, k / block(type).elements, to);
  if (type == DType::kF32) {
    std::memcpy(to, values, static_cast<size_t>(k) * sizeof(float));
    return {};
  }
  const bool f16 = type == DType::kF16;
  for (int64_t i = 0; i < k; ++i) {
    const uint16_t bits = f16 ? float_to_f16(values[i]) : float_to_bf16(values[i]);
    const float rounded = f16 ? f16_to_float(bits) : bf16_to_float(bits);
    if (!std::isfinite(rounded)) {
      return Error{ErrorKind::kUnsupported, "", "", str("values that ", name(type), " holds"),
                   str("one is ", values[i])};
    }
    std::memcpy(to + 2 * i, &bits, sizeof bits);
  }
  return {};
}

}  // namespace

std::vector<float> widen_values(const std::byte* data, DType type, int64_t count,
                                ThreadPool& pool) {
  std::vector<float> values(static_cast<size_t>(count));
  visit_codec(type, [&]<class Codec>() {
    pool.split(
        count,
        [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            values[static_cast<size_t>(i)] = static_cast<float>(Codec::decode(data, i));
        },
        kLeastValues);
  });
  return values;
}

Result<std::vector<std::byte>> store_rows(const float* values, int64_t n, int64_t k, DType type,
                                          ThreadPool& pool) {
  const int64_t bytes = row_bytes(type, k);
  std::vector<std::byte> stored(static_cast<size_t>(n * bytes));
  FirstError first_error;
  pool.split(
      n,
      [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const Status done = store_row(values + row * k, k, type, stored.data() + row * bytes);
          if (done) continue;
          Error error = done.error();
          error.place = str("row ", row);
          return first_error.keep(row, std::move(error));
        }
      },
      std::max<int64_t>(1, kLeastValues / std::max<int64_t>(k, 1)));
  MORACLE_CHECK(std::move(first_error).status());
  return stored;
}

}  // namespace moracle
