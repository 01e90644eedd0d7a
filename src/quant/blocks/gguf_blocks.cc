#include "quant/blocks/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/threads/thread_pool.h"
#include "quant/blocks/visit_block.h"

namespace moracle {
namespace {

// Minimum rows per thread: waking a thread takes as long as expanding a few rows.
constexpr int64_t kLeastBlockRows = 16;

template <class Codec>
constexpr int kBlockGroup = static_cast<int>(Codec::kForm.group.cols);
template <class Codec>
constexpr int kBlockGroups = Codec::kBlock.elements / kBlockGroup<Codec>;

// Two codes to a byte, the even column in the low nibble. `count` is a multiple of 32. The
// compilers' vector types have a size that SSE2 and NEON support.
void pack_nibbles(const int8_t* codes, int count, std::byte* to) {
  using Words __attribute__((vector_size(16))) = uint16_t;
  using Bytes __attribute__((vector_size(16))) = uint8_t;
  for (int i = 0; i < count; i += 32) {
    Words words[2];
    std::memcpy(words, codes + i, sizeof words);
    for (Words& two : words) two = (two & 0x0f) | (two >> 4 & 0xf0);
    const Bytes packed = __builtin_shufflevector(reinterpret_cast<Bytes>(words[0]),
                                                 reinterpret_cast<Bytes>(words[1]), 0, 2, 4, 6, 8,
                                                 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    std::memcpy(to + i / 2, &packed, sizeof packed);
  }
}

constexpr auto kE2m1Numbers = [] {
  std::array<float, 16> numbers{};
  for (size_t code = 0; code < numbers.size(); ++code)
    numbers[code] = e2m1_to_float(static_cast<uint8_t>(code));
  return numbers;
}();

template <class Codec>
float number_of(int8_t code) {
  if constexpr (Codec::kForm.dtype == DType::kF4E2M1) {
    return kE2m1Numbers[code];
  } else {
    return static_cast<float>(code - Codec::kZeroPoint);
  }
}

// Expands blocks [first, last), which follow one another in whole rows.
template <class Codec>
void expand(const std::byte* blocks, int64_t first, int64_t last, CanonicalMatrix& matrix) {
  constexpr int kElements = Codec::kBlock.elements, kGroups = kBlockGroups<Codec>;
  constexpr bool kBytes = Codec::kForm.dtype == DType::kI8;
  constexpr int kCodeBytes = kBytes ? kElements : kElements / 2;
  BlockNumbers numbers;
  for (int64_t b = first; b < last; ++b) {
    Codec::unpack(blocks + b * Codec::kBlock.bytes, numbers);
    std::byte* const codes = matrix.storage.data() + b * kCodeBytes;
    if constexpr (kBytes) {
      std::memcpy(codes, numbers.codes, kElements);
    } else {
      pack_nibbles(numbers.codes, kElements, codes);
    }
    std::copy_n(numbers.scales, kGroups, matrix.scales.data() + b * kGroups);
    if constexpr (Codec::kForm.minimums)
      std::copy_n(numbers.minimums, kGroups, matrix.minimums.data() + b * kGroups);
    if constexpr (Codec::kForm.scale_dtype == DType::kI8) {
      matrix.scale_factors[b] = numbers.scale_factor;
      if constexpr (Codec::kForm.minimums) matrix.minimum_factors[b] = numbers.minimum_factor;
    }
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
    if constexpr (Codec::kForm.scale_dtype == DType::kI8) {
      matrix.scale_factors.resize(static_cast<size_t>(n * matrix.factor_cols()));
      if constexpr (Codec::kForm.minimums)
        matrix.minimum_factors.resize(matrix.scale_factors.size());
    }
    if constexpr (!Codec::kForm.symmetric) matrix.zero_points.assign(scales, Codec::kZeroPoint);
    const int64_t blocks = k / Codec::kBlock.elements;
    pool.split(
        n,
        [&](int64_t begin, int64_t end) {
          expand<Codec>(rows, begin * blocks, end * blocks, matrix);
        },
        kLeastBlockRows);
  });
  return matrix;
}

void decode_blocks(DType type, const std::byte* blocks, int64_t count, float* values) {
  visit_block(type, [&]<class Codec>() {
    constexpr int kGroup = kBlockGroup<Codec>;
    BlockNumbers numbers;
    for (int64_t b = 0; b < count; ++b) {
      Codec::unpack(blocks + b * Codec::kBlock.bytes, numbers);
      float* to = values + b * Codec::kBlock.elements;
      for (int g = 0; g < kBlockGroups<Codec>; ++g) {
        for (int i = 0; i < kGroup; ++i, ++to) {
          *to = number_of<Codec>(numbers.codes[g * kGroup + i]) * numbers.scales[g];
          if constexpr (Codec::kForm.minimums) *to -= numbers.minimums[g];
        }
      }
    }
  });
}

int64_t first_not_finite_block(DType type, const std::byte* blocks, int64_t count) {
  int64_t bad = -1;
  visit_block(type, [&]<class Codec>() {
    for (int64_t b = 0; b < count && bad < 0; ++b)
      if (!Codec::is_finite(blocks + b * Codec::kBlock.bytes)) bad = b;
  });
  return bad;
}

}  // namespace moracle
