#include "checkpoint/packed.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producer.h"

namespace moracle {

uint32_t word_at(const TensorView& words, int64_t index) {
  uint32_t word;
  std::memcpy(&word, words.data + 4 * index, sizeof word);
  return word;
}

namespace {

// Column c of 8 lies in nibble kAwqNibble[c].
constexpr int kAwqNibble[] = {0, 4, 1, 5, 2, 6, 3, 7};

// From offset binary to two's complement: the highest bit of every code changes.
uint32_t flip_of(int bits) {
  return bits == 4 ? 0x88888888u : 0x80808080u;
}

// Stores a word of codes at byte `offset` of a row; at the row's end only the bytes that it has.
void store_word(std::byte* row, int64_t row_bytes, int64_t offset, uint32_t word) {
  const int64_t left = row_bytes - offset;
  if (left >= 4) {
    std::memcpy(row + offset, &word, 4);  // of a known size: one instruction
  } else {
    std::memcpy(row + offset, &word, left);
  }
}

// Words [K·b/32, N].
void unpack_gptq(const TensorView& words, CanonicalMatrix& matrix, uint32_t flip) {
  const int64_t row_bytes = matrix.row_bytes();
  for (int64_t r = 0; r < words.shape[0]; ++r) {
    for (int64_t c = 0; c < matrix.n; ++c) {
      const uint32_t word = word_at(words, r * matrix.n + c) ^ flip;
      store_word(matrix.storage.data() + c * row_bytes, row_bytes, 4 * r, word);
    }
  }
}

// Words [K, N/8]. Eight words below each other hold a square of codes, which is transposed.
void unpack_awq(const TensorView& words, CanonicalMatrix& matrix, uint32_t flip) {
  const int64_t row_bytes = matrix.row_bytes(), width = words.shape[1];
  for (int64_t k = 0; k < matrix.k; k += 8) {
    const int64_t rows = std::min<int64_t>(8, matrix.k - k);
    for (int64_t w = 0; w < width; ++w) {
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

// Words [N, ceil(K·b/32)].
void unpack_compressed_tensors(const TensorView& words, CanonicalMatrix& matrix, uint32_t flip) {
  const int64_t row_bytes = matrix.row_bytes(), width = words.shape[1];
  const bool half_byte = matrix.k * bits(matrix.key.dtype) % 8 != 0;
  for (int64_t r = 0; r < matrix.n; ++r) {
    std::byte* row = matrix.storage.data() + r * row_bytes;
    for (int64_t w = 0; w < width; ++w) {
      store_word(row, row_bytes, 4 * w, word_at(words, r * width + w) ^ flip);
    }
    if (half_byte) row[row_bytes - 1] &= std::byte{15};
  }
}

}  // namespace

void unpack_codes(PackOrder order, const TensorView& words, CanonicalMatrix& matrix) {
  matrix.storage.resize(matrix.n * matrix.row_bytes());
  matrix.codes = matrix.storage;
  const uint32_t flip = flip_of(bits(matrix.key.dtype));
  switch (order) {
    case PackOrder::kGptq:
      return unpack_gptq(words, matrix, flip);
    case PackOrder::kAwq:
      return unpack_awq(words, matrix, flip);
    case PackOrder::kCompressedTensors:
      return unpack_compressed_tensors(words, matrix, flip);
  }
}

std::vector<int8_t> unpack_zero_points(PackOrder order, const TensorView& words,
                                       const CanonicalMatrix& matrix, int less) {
  const int width = bits(matrix.key.dtype), per_word = 32 / width;
  const uint32_t mask = (1u << width) - 1;
  const int middle = 1 << (width - 1);
  const int64_t groups = matrix.scale_cols();
  std::vector<int8_t> zeros(matrix.n * groups);
  for (int64_t n = 0; n < matrix.n; ++n) {
    const int64_t slot = n % per_word;
    const int shift =
        static_cast<int>(order == PackOrder::kAwq ? 4 * kAwqNibble[slot] : width * slot);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t word = order == PackOrder::kCompressedTensors
                               ? n / per_word * groups + g
                               : g * (matrix.n / per_word) + n / per_word;
      const uint32_t stored = word_at(words, word) >> shift;
      const auto zero = static_cast<int>((stored + static_cast<uint32_t>(less)) & mask);
      zeros[n * groups + g] = static_cast<int8_t>(zero - middle);
    }
  }
  return zeros;
}

Status read_zero_points(const Tensors& tensors, const std::string& name, PackOrder order, int less,
                        const char* says, CanonicalMatrix& matrix) {
  MORACLE_TRY(const TensorView words, tensors.get(name));
  std::vector<int8_t> zeros = unpack_zero_points(order, words, matrix, less);
  if (!matrix.key.symmetric) {
    matrix.zero_points = std::move(zeros);
    return {};
  }
  const int64_t groups = matrix.scale_cols();
  const int middle = 1 << (bits(matrix.key.dtype) - 1);
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t c = 0; c < matrix.n; ++c) {
      const int zero = zeros[c * groups + g];
      if (zero == 0) continue;
      return tensors.wrong(
          name, str("the zero point ", middle, " everywhere, since the config says ", says),
          str("group ", g, ", column ", c, " has ", zero + middle));
    }
  }
  return {};
}

Result<std::vector<float>> read_transposed_scales(const Tensors& tensors, const std::string& name,
                                                  int64_t n) {
  MORACLE_TRY(const std::vector<float> stored, read_scales(tensors, name));
  std::vector<float> scales(stored.size());
  const int64_t groups = n == 0 ? 0 : static_cast<int64_t>(stored.size()) / n;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t c = 0; c < n; ++c) scales[c * groups + g] = stored[g * n + c];
  }
  return scales;
}

Status check_transposed_scales(const Tensors& tensors, const std::string& name, int64_t groups,
                               int64_t n, int64_t size) {
  MORACLE_TRY(const TensorView scales, get_floats(tensors, name));
  if (scales.shape == std::vector<int64_t>{groups, n}) return {};
  return tensors.wrong(name, str("shape [", groups, ", ", n, "] (groups of ", size, ")"),
                       "it is " + to_string(scales));
}

Result<std::vector<int32_t>> read_group_index(const Tensors& tensors, const std::string& name,
                                              int64_t groups) {
  MORACLE_TRY(const TensorView view, tensors.get(name));
  std::vector<int32_t> index(view.num_elements());
  for (size_t i = 0; i < index.size(); ++i) {
    index[i] = static_cast<int32_t>(word_at(view, static_cast<int64_t>(i)));
    if (index[i] >= 0 && index[i] < groups) continue;
    return tensors.wrong(name, str("groups from 0 to ", groups - 1),
                         str("element ", i, " is ", index[i]));
  }
  return index;
}

}  // namespace moracle
