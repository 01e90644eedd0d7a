// Reads one matrix of codes and zero points, packed by the rule of each producer.
#include "checkpoint/producers/packed.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "quant/codec.h"

namespace moracle::packed_test {
namespace {

constexpr int64_t kN = 24, kK = 40, kSize = 16, kGroups = 3;

struct Packed {
  std::vector<uint32_t> codes, zeros;
  std::vector<int64_t> codes_shape, zeros_shape;
};

class OnePackedMatrix : public ::testing::Test {
 protected:
  OnePackedMatrix() : code(kN * kK), zero(kN * kGroups) {
    std::mt19937 random(3);
    for (int& c : code) c = static_cast<int>(random() % 16);
    for (int& z : zero) z = static_cast<int>(random() % 16);
    zero[0] = 0;
    zero[1] = 15;
  }
  // `place` maps element (row, column) of [rows, columns] to a word and a slot in the word.
  template <class Place>
  static std::vector<uint32_t> pack(size_t words, int64_t rows, int64_t cols,
                                    const std::vector<int>& values, int less, Place place) {
    std::vector<uint32_t> packed(words);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const auto [word, slot] = place(r, c);
        const auto value = static_cast<uint32_t>(values[r * cols + c] - less) & 15u;
        packed[word] |= value << (4 * slot);
      }
    }
    return packed;
  }
  using At = std::pair<int64_t, int64_t>;

  Packed gptq(int less) const {
    return {pack(kK / 8 * kN, kN, kK, code, 0,
                 [](int64_t n, int64_t k) {
                   return At{k / 8 * kN + n, k % 8};
                 }),
            pack(kGroups * kN / 8, kN, kGroups, zero, less,
                 [](int64_t n, int64_t g) {
                   return At{g * (kN / 8) + n / 8, n % 8};
                 }),
            {kK / 8, kN},
            {kGroups, kN / 8}};
  }
  Packed awq() const {
    constexpr int64_t kSlot[] = {0, 4, 1, 5, 2, 6, 3, 7};
    return {pack(kK * kN / 8, kN, kK, code, 0,
                 [&](int64_t n, int64_t k) {
                   return At{k * (kN / 8) + n / 8, kSlot[n % 8]};
                 }),
            pack(kGroups * kN / 8, kN, kGroups, zero, 0,
                 [&](int64_t n, int64_t g) {
                   return At{g * (kN / 8) + n / 8, kSlot[n % 8]};
                 }),
            {kK, kN / 8},
            {kGroups, kN / 8}};
  }
  Packed compressed_tensors() const {
    return {pack(kN * kK / 8, kN, kK, code, 0,
                 [](int64_t n, int64_t k) {
                   return At{n * (kK / 8) + k / 8, k % 8};
                 }),
            pack(kN / 8 * kGroups, kN, kGroups, zero, 0,
                 [](int64_t n, int64_t g) {
                   return At{n / 8 * kGroups + g, n % 8};
                 }),
            {kN, kK / 8},
            {kN / 8, kGroups}};
  }
  void expect_same(PackOrder order, const Packed& packed, int less) const {
    const auto view = [](const std::vector<uint32_t>& words, const std::vector<int64_t>& shape) {
      return TensorView{reinterpret_cast<const std::byte*>(words.data()), DType::kI32, shape};
    };
    ThreadPool pool(2);
    CanonicalMatrix matrix;
    matrix.n = kN;
    matrix.k = kK;
    matrix.key = int4_static_group(kSize);
    unpack_codes(order, view(packed.codes, packed.codes_shape), matrix, pool);
    const auto zeros =
        unpack_zero_points(order, view(packed.zeros, packed.zeros_shape), matrix, less);
    std::vector<double> row(kK);
    for (int64_t n = 0; n < kN; ++n) {
      unpack_row(matrix, n, row.data());
      for (int64_t k = 0; k < kK; ++k) EXPECT_EQ(row[k], code[n * kK + k] - 8) << n << " " << k;
      for (int64_t g = 0; g < kGroups; ++g) {
        EXPECT_EQ(zeros[n * kGroups + g], zero[n * kGroups + g] - 8) << n << " " << g;
      }
    }
  }

  std::vector<int> code, zero;
};

TEST_F(OnePackedMatrix, HasSameBytesFromGptqVersion1) {
  expect_same(PackOrder::kGptq, gptq(1), 1);
}
TEST_F(OnePackedMatrix, HasSameBytesFromGptqVersion2) {
  expect_same(PackOrder::kGptq, gptq(0), 0);
}
TEST_F(OnePackedMatrix, HasSameBytesFromAwq) {
  expect_same(PackOrder::kAwq, awq(), 0);
}
TEST_F(OnePackedMatrix, HasSameBytesFromCompressedTensors) {
  expect_same(PackOrder::kCompressedTensors, compressed_tensors(), 0);
}
TEST_F(OnePackedMatrix, HasOtherBytesInOtherColumnOrder) {
  EXPECT_NE(gptq(0).codes, awq().codes);
  EXPECT_NE(gptq(0).codes, compressed_tensors().codes);
  EXPECT_NE(gptq(0).zeros, awq().zeros);
  EXPECT_NE(gptq(0).zeros, gptq(1).zeros);
  EXPECT_NE(gptq(0).zeros, compressed_tensors().zeros);
}

TEST(PackedCodes, AreEqualForAnyThreadCount) {
  constexpr int64_t kRows = 1032, kCols = 4096;
  std::vector<uint32_t> words(kRows * kCols / 8);
  uint32_t state = 1;
  for (uint32_t& word : words) word = state = state * 1664525u + 1013904223u;
  const auto unpacked = [&](PackOrder order, int threads) {
    const std::vector<int64_t> shape =
        order == PackOrder::kGptq  ? std::vector<int64_t>{kCols / 8, kRows}
        : order == PackOrder::kAwq ? std::vector<int64_t>{kCols, kRows / 8}
                                   : std::vector<int64_t>{kRows, kCols / 8};
    ThreadPool pool(threads);
    CanonicalMatrix matrix;
    matrix.n = kRows;
    matrix.k = kCols;
    matrix.key = int4_static_group(128);
    unpack_codes(order, {reinterpret_cast<const std::byte*>(words.data()), DType::kI32, shape},
                 matrix, pool);
    return matrix.storage;
  };
  for (const PackOrder order : {PackOrder::kGptq, PackOrder::kAwq, PackOrder::kCompressedTensors}) {
    const auto alone = unpacked(order, 1);
    for (const int threads : {2, 3, 8}) EXPECT_TRUE(unpacked(order, threads) == alone) << threads;
  }
}

}  // namespace
}  // namespace moracle::packed_test
