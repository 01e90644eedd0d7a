// New keys and values of the cache, stored in its type.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/simd/cached_codes.h"

namespace moracle {
namespace {

// The first finite value that rounded to infinity in f16; 0 if there is none.
float beyond_f16(const float* row, const uint16_t* kept, int64_t count) {
  uint16_t most = 0;
  for (int64_t i = 0; i < count; ++i)
    most = std::max(most, static_cast<uint16_t>(kept[i] & 0x7fffu));
  for (int64_t i = 0; most >= 0x7c00u && i < count; ++i) {
    if ((kept[i] & 0x7fffu) == 0x7c00u && std::isfinite(row[i])) return row[i];
  }
  return 0;
}

// Rows of one step for keys or values.
struct NewRows {
  const Matrix& rows;
  bool keys;
  int64_t offset, scales;  // byte offsets in a page
  float e4m3_scale;
};

// Stores a head as int8 codes in the order of cached_codes.h, with its scale.
void keep_codes(const cpu::VectorOps& vector, const float* from, int64_t count, bool keys,
                int64_t position, int8_t* to, float* scale) {
  constexpr int64_t kChunk = 256;
  int8_t codes[kChunk];
  const int64_t columns = cached_columns(DType::kI8, count);
  const auto scatter = [&](const int8_t* some, int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c) {
      const int64_t at =
          keys ? cpu::key_code(position, c, columns) : cpu::value_code(position, c, columns);
      to[at] = some[c - first];
    }
  };
  if (count <= kChunk) {
    *scale = vector.quantize_int8(from, count, codes);
    scatter(codes, 0, count);
  } else {
    std::vector<int8_t> many(static_cast<size_t>(count));
    *scale = vector.quantize_int8(from, count, many.data());
    scatter(many.data(), 0, count);
  }
  const int8_t zeros[16] = {};
  scatter(zeros, count, columns);
}

// Stores the heads of a row of keys or values in the cache's type, `page` rows apart. Returns
// beyond_f16's value.
float keep(const cpu::VectorOps& vector, const LayerCache& cache, const NewRows& all, int64_t row,
           int64_t page, int64_t position, std::byte* to) {
  const int64_t count = all.rows.cols / cache.num_heads;
  float beyond = 0;
  for (int64_t head = 0; head < cache.num_heads; ++head) {
    const float* const from = f32_row(all.rows, row) + head * count;
    const int64_t at = (head * page + position) * count;
    std::byte* const base = to + all.offset;
    switch (cache.dtype) {
      case DType::kBF16:
        vector.to_bf16(from, count, reinterpret_cast<uint16_t*>(base) + at);
        break;
      case DType::kF16: {
        uint16_t* const kept = reinterpret_cast<uint16_t*>(base) + at;
        vector.to_f16(from, count, kept);
        if (beyond == 0) beyond = beyond_f16(from, kept, count);
        break;
      }
      case DType::kF8E4M3:
        vector.encode_e4m3(from, count, all.e4m3_scale, reinterpret_cast<uint8_t*>(base) + at);
        break;
      case DType::kI8:
        keep_codes(
            vector, from, count, all.keys, position,
            reinterpret_cast<int8_t*>(base) + head * page * cached_columns(cache.dtype, count),
            reinterpret_cast<float*>(to + all.scales) + head * page + position);
        break;
      default:
        std::memcpy(reinterpret_cast<float*>(base) + at, from, count * sizeof(float));
    }
  }
  return beyond;
}

}  // namespace

Status CpuOps::append(const Matrix& k, const Matrix& v, const Batch& batch, const LayerCache& cache,
                      Stream) {
  const NewRows keys{k, true, cache.keys, cache.key_scales, cache.key_scale},
      values{v, false, cache.values, cache.value_scales, cache.value_scale};
  std::atomic<float> beyond{0};
  split_rows(batch.num_tokens, k.cols + v.cols, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const int64_t page = batch.positions[t] / batch.page, at = batch.positions[t] % batch.page;
      std::byte* const to = batch.pages[batch.first_page[batch.sequences[t]] + page];
      const float key = keep(vector_, cache, keys, t, batch.page, at, to);
      const float value = keep(vector_, cache, values, t, batch.page, at, to);
      if (key != 0 || value != 0) beyond.store(key != 0 ? key : value);
    }
  });
  if (const float value = beyond.load(); value != 0) {
    return Error{ErrorKind::kUnsupported, "", "kv cache",
                 "keys and values below 65520 in magnitude with f16 (bf16 and f32 have no such "
                 "limit)",
                 str("one is ", value)};
  }
  return {};
}

}  // namespace moracle
