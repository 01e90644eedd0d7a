#include "quant/gguf_blocks.h"

#include <algorithm>
#include <cstring>

#include "base/threads/thread_pool.h"
#include "quant/visit_block.h"

namespace moracle {
namespace {

// Minimum rows per thread: waking a thread takes as long as expanding a few rows.
constexpr int64_t kLeastBlockRows = 16;

template <class Codec>
constexpr int kBlockGroup = static_cast<int>(Codec::kForm.group.cols);

// Two codes to a byte, the even column in the low nibble.
void pack_nibbles(const int8_t* codes, int count, std::byte* to) {
  for (int i = 0; i < count / 2; ++i)
    to[i] = static_cast<std::byte>((codes[2 * i] & 15) | (codes[2 * i + 1] & 15) << 4);
}

template <class Codec>
float number_of(int8_t code) {
  if constexpr (Codec::kForm.dtype == DType::kF4E2M1) {
    return e2m1_to_float(static_cast<uint8_t>(code));
  } else {
    return static_cast<float>(code - Codec::kZeroPoint);
  }
}

// Expands `count` blocks that follow one another in a row or in several whole rows.
template <class Codec>
void expand(const Block& unit, const std::byte* blocks, int64_t first, int64_t count,
            CanonicalMatrix& matrix) {
  const int groups = unit.elements / kBlockGroup<Codec>;
  const int64_t code_bytes = row_bytes(Codec::kForm.dtype, unit.elements);
  BlockNumbers numbers;
  for (int64_t b = first; b < first + count; ++b) {
    Codec::unpack(blocks + b * unit.bytes, numbers);
    std::byte* const codes = matrix.storage.data() + b * code_bytes;
    if constexpr (Codec::kForm.dtype == DType::kI8) {
      std::memcpy(codes, numbers.codes, static_cast<size_t>(unit.elements));
    } else {
      pack_nibbles(numbers.codes, unit.elements, codes);
    }
    std::copy_n(numbers.scales, groups, matrix.scales.data() + b * groups);
    if constexpr (Codec::kForm.minimums)
      std::copy_n(numbers.minimums, groups, matrix.minimums.data() + b * groups);
  }
}

}  // namespace

QuantKey integer_form(DType type) {
  QuantKey key;
  visit_block(type, [&]<class Codec>() { key = Codec::kForm; });
  return key;
}

CanonicalMatrix expand_blocks(DType type, const std::byte* rows, int64_t n, int64_t k,
                              ThreadPool& pool) {
  const Block unit = block(type);
  const int64_t blocks = k / unit.elements;
  CanonicalMatrix matrix;
  matrix.n = n;
  matrix.k = k;
  visit_block(type, [&]<class Codec>() {
    matrix.key = Codec::kForm;
    const auto scales = static_cast<size_t>(n * matrix.scale_cols());
    matrix.storage.resize(static_cast<size_t>(n * matrix.row_bytes()));
    matrix.codes = matrix.storage;
    matrix.scales.resize(scales);
    if constexpr (Codec::kForm.minimums) matrix.minimums.resize(scales);
    if constexpr (!Codec::kForm.symmetric) matrix.zero_points.assign(scales, Codec::kZeroPoint);
    pool.split(
        n,
        [&](int64_t begin, int64_t end) {
          expand<Codec>(unit, rows, begin * blocks, (end - begin) * blocks, matrix);
        },
        kLeastBlockRows);
  });
  return matrix;
}

void decode_blocks(DType type, const std::byte* blocks, int64_t count, float* values) {
  const Block unit = block(type);
  visit_block(type, [&]<class Codec>() {
    constexpr int kGroup = kBlockGroup<Codec>;
    BlockNumbers numbers;
    for (int64_t b = 0; b < count; ++b) {
      Codec::unpack(blocks + b * unit.bytes, numbers);
      for (int i = 0; i < unit.elements; ++i) {
        float value = number_of<Codec>(numbers.codes[i]) * numbers.scales[i / kGroup];
        if constexpr (Codec::kForm.minimums) value -= numbers.minimums[i / kGroup];
        values[b * unit.elements + i] = value;
      }
    }
  });
}

int64_t first_not_finite_block(DType type, const std::byte* blocks, int64_t count) {
  const Block unit = block(type);
  int64_t bad = -1;
  visit_block(type, [&]<class Codec>() {
    for (int64_t b = 0; b < count && bad < 0; ++b)
      if (!Codec::is_finite(blocks + b * unit.bytes)) bad = b;
  });
  return bad;
}

}  // namespace moracle
