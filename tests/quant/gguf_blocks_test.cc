// Tests block types of GGUF against blocks that PyPI's gguf dequantized (tests/golden/gguf).
#include "quant/blocks/gguf_blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "base/threads/thread_pool.h"
#include "quant/blocks/visit_block.h"
#include "quant/codec.h"
#include "support/golden_blocks.h"

namespace moracle::gguf_blocks_test {
namespace {

using testing::GoldenBlocks;

std::vector<DType> block_types() {
  std::vector<DType> types;
  for (size_t i = 0; i < kNumDTypes; ++i) {
    if (is_gguf_block(static_cast<DType>(i))) types.push_back(static_cast<DType>(i));
  }
  return types;
}

// Every value of the matrix in double, by the definition in quant.h.
std::vector<double> values_of(const CanonicalMatrix& matrix) {
  std::vector<double> values(matrix.n * matrix.k);
  for (int64_t r = 0; r < matrix.n; ++r) {
    double* const row = values.data() + r * matrix.k;
    unpack_row(matrix, r, row);
    for (int64_t c = 0; c < matrix.k; ++c) {
      const int64_t at = r * matrix.scale_cols() + c / matrix.group_cols();
      if (!matrix.zero_points.empty()) row[c] -= matrix.zero_points[at];
      row[c] *= matrix.scales[at];
      if (!matrix.minimums.empty()) row[c] -= matrix.minimums[at];
    }
  }
  return values;
}

TEST(GgufBlocks, DecodeToTheBitsOfGgufForEveryType) {
  for (DType type : block_types()) {
    const GoldenBlocks golden(type);
    std::vector<float> values(golden.values.size());
    decode_blocks(type, golden.blocks.data(), golden.count, values.data());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(golden.values[i]))
          << name(type) << " block " << i / block(type).elements << " element "
          << i % block(type).elements << ": " << values[i] << " instead of " << golden.values[i];
    }
  }
}

// f32 holds a value of a type without minimums exactly, and rounds the others once.
TEST(GgufBlocks, IntegerFormHoldsTheDecodedValuesForEveryType) {
  ThreadPool caller(1);
  for (DType type : block_types()) {
    SCOPED_TRACE(name(type));
    const GoldenBlocks golden(type);
    const CanonicalMatrix matrix =
        expand_blocks(type, golden.blocks.data(), golden.count, block(type).elements, caller);
    EXPECT_EQ(matrix.key, integer_form(type));
    EXPECT_EQ(matrix.zero_points.empty(), matrix.key.symmetric);
    EXPECT_EQ(matrix.minimums.empty(), !matrix.key.minimums);
    const std::vector<double> values = values_of(matrix);
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isinf(golden.values[i])) {  // 6 · 2^127 of mxfp4
        ASSERT_GT(std::abs(values[i]), std::numeric_limits<float>::max()) << i;
      } else if (matrix.key.minimums) {
        ASSERT_EQ(static_cast<float>(values[i]), golden.values[i]) << i;
      } else {
        ASSERT_EQ(values[i], golden.values[i]) << i;
      }
    }
  }
}

TEST(GgufBlocks, RowsOfSeveralBlocksExpandInOrderOnAnyNumberOfThreads) {
  ThreadPool caller(1), threads(3);
  for (DType type : block_types()) {
    SCOPED_TRACE(name(type));
    const GoldenBlocks golden(type);
    const Block unit = block(type);
    // 200 rows of three blocks: the file's, again and again.
    const int64_t n = 200, per_row = 3;
    std::vector<std::byte> rows(n * per_row * unit.bytes);
    for (int64_t b = 0; b < n * per_row; ++b) {
      std::memcpy(rows.data() + b * unit.bytes,
                  golden.blocks.data() + b % golden.count * unit.bytes, unit.bytes);
    }
    const int64_t k = per_row * unit.elements;
    const CanonicalMatrix matrix = expand_blocks(type, rows.data(), n, k, threads);
    const CanonicalMatrix same = expand_blocks(type, rows.data(), n, k, caller);
    EXPECT_EQ(matrix.storage, same.storage);
    EXPECT_EQ(matrix.scales, same.scales);
    EXPECT_EQ(matrix.zero_points, same.zero_points);
    EXPECT_EQ(matrix.minimums, same.minimums);
    const std::vector<double> values = values_of(matrix);
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t from = i % golden.values.size();
      if (std::isinf(golden.values[from])) continue;
      ASSERT_EQ(static_cast<float>(values[i]), golden.values[from]) << i;
    }
  }
}

TEST(GgufBlocks, IntegerFormHasTheGroupsOfTheType) {
  const struct {
    DType type;
    DType codes;
    int64_t group;
    bool zero_points, minimums;
  } kWant[] = {
      {DType::kQ4_0, DType::kI4, 32, false, false},   {DType::kQ4_1, DType::kI4, 32, true, true},
      {DType::kQ5_0, DType::kI8, 32, false, false},   {DType::kQ5_1, DType::kI8, 32, false, true},
      {DType::kQ8_0, DType::kI8, 32, false, false},   {DType::kQ2K, DType::kI4, 16, false, true},
      {DType::kQ3K, DType::kI4, 16, false, false},    {DType::kQ4K, DType::kI4, 32, true, true},
      {DType::kQ5K, DType::kI8, 32, false, true},     {DType::kQ6K, DType::kI8, 16, false, false},
      {DType::kIQ2XXS, DType::kI8, 32, false, false}, {DType::kIQ2XS, DType::kI8, 16, false, false},
      {DType::kIQ3XXS, DType::kI8, 32, false, false}, {DType::kIQ1S, DType::kI8, 32, false, false},
      {DType::kIQ4NL, DType::kI8, 32, false, false},  {DType::kIQ3S, DType::kI8, 32, false, false},
      {DType::kIQ2S, DType::kI8, 16, false, false},   {DType::kIQ4XS, DType::kI8, 32, false, false},
      {DType::kIQ1M, DType::kI8, 16, false, false}};
  // Scales in f16 where a block has one group, 8-bit integers times f16 in k-quants.
  using enum DType;
  const std::set halves = {kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kIQ4NL};
  const std::set steps = {kQ2K,    kQ3K,    kQ4K,   kQ5K,  kQ6K,  kIQ4XS, kIQ3S,
                          kIQ3XXS, kIQ2XXS, kIQ2XS, kIQ2S, kIQ1S, kIQ1M};
  for (const auto& want : kWant) {
    const DType scales = halves.contains(want.type) ? kF16 : steps.contains(want.type) ? kI8 : kF32;
    QuantKey key{want.codes, per_group(want.group), false, !want.zero_points,
                 scales,     want.minimums};
    if (want.type == kQ6K) key.codes = CodeSet::kSigned6;
    if (want.type == kQ5_0) key.codes = CodeSet::kSigned5;
    if (want.type == kQ5_1 || want.type == kQ5K) key.codes = CodeSet::kUnsigned5;
    if (want.type == kIQ4NL || want.type == kIQ4XS) key.codes = CodeSet::kIq4;
    if (want.type == kIQ3S) key.codes = CodeSet::kIq3S;
    if (want.type == kIQ3XXS) key.codes = CodeSet::kIq3Xxs;
    if (want.type == kIQ2XXS || want.type == kIQ2XS || want.type == kIQ2S)
      key.codes = CodeSet::kIq2;
    if (want.type == kIQ1S || want.type == kIQ1M) key.codes = CodeSet::kIq1;
    EXPECT_EQ(integer_form(want.type), key) << name(want.type);
  }
  EXPECT_EQ(integer_form(DType::kMxfp4Block), kMxfp4Static);
  EXPECT_EQ(integer_form(DType::kNvfp4Block), kNvfp4Static);
}

TEST(GgufBlocks, HaveOneCodecOfTheirSize) {
  for (size_t i = 0; i < kNumDTypes; ++i) {
    const auto type = static_cast<DType>(i);
    const auto has_size = [&]<class Codec>() {
      EXPECT_EQ(Codec::kBlock.elements, block(type).elements) << name(type);
      EXPECT_EQ(Codec::kBlock.bytes, block(type).bytes) << name(type);
    };
    EXPECT_EQ(visit_block(type, has_size), is_gguf_block(type)) << name(type);
  }
}

// Bit patterns of f16 that are not finite, in each scale of a block among finite ones.
TEST(GgufBlocks, FirstBlockWithScaleThatIsNotFiniteIsFound) {
  const struct {
    DType type;
    std::vector<int> halves;
  } kScales[] = {{DType::kQ4_0, {0}},    {DType::kQ4_1, {0, 2}}, {DType::kQ5_0, {0}},
                 {DType::kQ5_1, {0, 2}}, {DType::kQ8_0, {0}},    {DType::kQ2K, {80, 82}},
                 {DType::kQ3K, {108}},   {DType::kQ4K, {0, 2}},  {DType::kQ5K, {0, 2}},
                 {DType::kQ6K, {208}},   {DType::kIQ2XXS, {0}},  {DType::kIQ2XS, {0}},
                 {DType::kIQ3XXS, {0}},  {DType::kIQ1S, {0}},    {DType::kIQ4NL, {0}},
                 {DType::kIQ3S, {0}},    {DType::kIQ2S, {0}},    {DType::kIQ4XS, {0}}};
  for (const auto& [type, halves] : kScales) {
    const GoldenBlocks golden(type);
    EXPECT_EQ(first_not_finite_block(type, golden.blocks.data(), golden.count), -1) << name(type);
    for (int at : halves) {
      for (uint16_t bits : {0x7c00, 0xfc00, 0x7e00, 0xffff}) {
        std::vector<std::byte> blocks = golden.blocks;
        for (int b : {5, 9}) std::memcpy(blocks.data() + b * block(type).bytes + at, &bits, 2);
        EXPECT_EQ(first_not_finite_block(type, blocks.data(), golden.count), 5) << name(type);
        EXPECT_EQ(first_not_finite_block(type, blocks.data(), 5), -1) << name(type);
      }
    }
  }
}

TEST(GgufBlocks, ScaleOfIq1mInFourWordsIsFoundNotFinite) {
  GoldenBlocks golden(DType::kIQ1M);
  EXPECT_EQ(first_not_finite_block(golden.type, golden.blocks.data(), golden.count), -1);
  std::byte* const words = golden.blocks.data() + 2 * 56 + 48;
  for (const auto& [at, nibble] : {std::pair{7, 0x70}, {5, 0xc0}})
    words[at] = (words[at] & std::byte{0x0f}) | static_cast<std::byte>(nibble);
  EXPECT_EQ(first_not_finite_block(golden.type, golden.blocks.data(), golden.count), 2);
}

TEST(GgufBlocks, ExponentThatIsNotANumberIsFound) {
  GoldenBlocks golden(DType::kMxfp4Block);
  EXPECT_EQ(first_not_finite_block(golden.type, golden.blocks.data(), golden.count), -1);
  golden.blocks[6 * 17] = std::byte{255};
  EXPECT_EQ(first_not_finite_block(golden.type, golden.blocks.data(), golden.count), 6);
}

TEST(GgufBlocks, ScalesOfNvfp4AreAllFinite) {
  const GoldenBlocks golden(DType::kNvfp4Block);  // has each of the 256 scales
  EXPECT_EQ(first_not_finite_block(golden.type, golden.blocks.data(), golden.count), -1);
}

}  // namespace
}  // namespace moracle::gguf_blocks_test
