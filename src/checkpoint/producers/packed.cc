#include "checkpoint/producers/packed.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/transpose.h"
#include "base/try.h"

namespace moracle {

uint32_t word_at(const TensorView& words, int64_t index) {
  uint32_t word;
  std::memcpy(&word, words.data + 4 * index, sizeof word);
  return word;
}

namespace {

// Minimum bytes per thread: waking a thread takes as long as processing this many bytes.
constexpr int64_t kLeastBytes = 1 << 18;

// Column c of each group of 8 is in nibble kAwqNibble[c].
constexpr int kAwqNibble[] = {0, 4, 1, 5, 2, 6, 3, 7};

// Converts offset binary to two's complement: flips the highest bit of every code.
uint32_t flip_of(int bits) {
  return bits == 4 ? 0x88888888u : 0x80808080u;
}

// Stores a word of codes at byte `offset` of a row. At the end of the row, stores only the bytes
// inside the row.
void store_word(std::byte* row, int64_t row_bytes, int64_t offset, uint32_t word) {
  const int64_t left = row_bytes - offset;
  if (left >= 4) {
    std::memcpy(row + offset, &word, 4);  // constant size: one instruction
  } else {
    std::memcpy(row + offset, &word, left);
  }
}

// Unpacks words [K·b/32, N] to rows [begin, end) of the matrix.
void unpack_gptq(const TensorView& words, CanonicalMatrix& matrix, uint32_t flip, int64_t begin,
                 int64_t end) {
  transpose<uint32_t>(
      words.data, words.shape[0], matrix.n, begin, end,
      [flip](uint32_t word) { return word ^ flip; }, matrix.storage.data());
}

// Unpacks words [K, N/8] to rows [begin, end), both multiples of 8. Eight words of a column hold a
// square of codes, which is transposed.
void unpack_awq(const TensorView& words, CanonicalMatrix& matrix, uint32_t flip, int64_t begin,
                int64_t end) {
  // Process enough columns to fill a cache line in each row, before the next word's eight rows.
  constexpr int64_t kCols = 128;
  const int64_t row_bytes = matrix.row_bytes(), width = words.shape[1];
  for (int64_t first = 0; first < matrix.k; first += kCols) {
    const int64_t last = std::min(first + kCols, matrix.k);
    for (int64_t w = begin / 8; w < end / 8; ++w) {
      for (int64_t k = first; k < last; k += 8) {
        const int64_t rows = std::min<int64_t>(8, last - k);
        uint32_t square[8] = {};
        for (int64_t i = 0; i < rows; ++i) square[i] = word_at(words, (k + i) * width + w) ^ flip;
        for (int64_t c = 0; c < 8; ++c) {
          uint32_t word = 0;
          for (int i = 0; i < 8; ++i) word |= (square[i] >> (4 * kAwqNibble[c]) & 15u) << (4 * i);
          store_word(matrix.storage.data() + (8 * w + c) * row_bytes, row_bytes, k / 2, word);
        }
      }
    }
  }
}

// Unpacks words [N, ceil(K·b/32)] to rows [begin, end).
void unpack_compressed_tensors(const TensorView& words, CanonicalMatrix& matrix, uint32_t flip,
                               int64_t begin, int64_t end) {
  const int64_t row_bytes = matrix.row_bytes(), width = words.shape[1], whole = row_bytes / 4;
  const bool half_byte = matrix.k * bits(matrix.key.dtype) % 8 != 0;
  for (int64_t r = begin; r < end; ++r) {
    std::byte* row = matrix.storage.data() + r * row_bytes;
    for (int64_t w = 0; w < whole; ++w) {
      const uint32_t word = word_at(words, r * width + w) ^ flip;
      std::memcpy(row + 4 * w, &word, sizeof word);
    }
    if (whole < width)
      store_word(row, row_bytes, 4 * whole, word_at(words, r * width + whole) ^ flip);
    if (half_byte) row[row_bytes - 1] &= std::byte{15};
  }
}

}  // namespace

void unpack_codes(PackOrder order, const TensorView& words, CanonicalMatrix& matrix,
                  ThreadPool& pool) {
  constexpr int64_t kStep = 8;  // AWQ keeps this many rows in one word
  matrix.storage.resize(matrix.n * matrix.row_bytes());
  matrix.codes = matrix.storage;
  const uint32_t flip = flip_of(bits(matrix.key.dtype));
  const int64_t least = kLeastBytes / std::max<int64_t>(matrix.row_bytes() * kStep, 1) + 1;
  const auto unpack = [&](int64_t begin, int64_t end) {
    begin *= kStep;
    end = std::min(end * kStep, matrix.n);
    switch (order) {
      case PackOrder::kGptq:
        return unpack_gptq(words, matrix, flip, begin, end);
      case PackOrder::kAwq:
        return unpack_awq(words, matrix, flip, begin, end);
      case PackOrder::kCompressedTensors:
        return unpack_compressed_tensors(words, matrix, flip, begin, end);
    }
  };
  pool.split((matrix.n + kStep - 1) / kStep, unpack, least);
}

std::vector<int8_t> unpack_zero_points(PackOrder order, const TensorView& words,
                                       const CanonicalMatrix& matrix, int less) {
  const int width = bits(matrix.key.dtype), per_word = 32 / width;
  const uint32_t mask = (1u << width) - 1;
  const int middle = 1 << (width - 1);
  const int64_t groups = matrix.scale_cols();
  std::vector<int8_t> zeros(matrix.n * groups);
  // Strides in words: from one group to the next, and from one word of a group to the next.
  const bool along_k = order == PackOrder::kCompressedTensors;
  const int64_t step = along_k ? 1 : matrix.n / per_word, next = along_k ? groups : 1;
  for (int64_t n = 0; n < matrix.n; ++n) {
    const int64_t slot = n % per_word, first = n / per_word * next;
    const int shift =
        static_cast<int>(order == PackOrder::kAwq ? 4 * kAwqNibble[slot] : width * slot);
    for (int64_t g = 0; g < groups; ++g) {
      const uint32_t stored = word_at(words, first + g * step) >> shift;
      const auto zero = static_cast<int>((stored + static_cast<uint32_t>(less)) & mask);
      zeros[n * groups + g] = static_cast<int8_t>(zero - middle);
    }
  }
  return zeros;
}

bool in_order(const TensorView& index, int64_t size) {
  const int64_t count = index.num_elements();
  uint32_t group = 0;
  for (int64_t first = 0; first < count; first += size, ++group) {
    uint32_t differences = 0;  // of a whole group, so that compilers vectorize the loop
    for (int64_t i = first; i < std::min(first + size, count); ++i)
      differences |= word_at(index, i) ^ group;
    if (differences != 0) return false;
  }
  return true;
}

}  // namespace moracle
