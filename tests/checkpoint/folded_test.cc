// Tests described weights that are folded while they are read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/threads/thread_pool.h"
#include "checkpoint/experts/matrix_share.h"
#include "moracle/checkpoint.h"
#include "support/must.h"
#include "support/random_matrix.h"

namespace moracle::folded_test {
namespace {

using ::testing::HasSubstr;
using testing::must;
using testing::values;

constexpr int64_t kRows = 600, kCols = 256;

CanonicalMatrix random_matrix(const QuantKey& key) {
  std::mt19937 random(5);
  CanonicalMatrix m = testing::random_matrix(key, kRows, kCols, random, 8);
  for (float& scale : m.scales) scale = std::ldexp(1.0f, -static_cast<int>(random() % 9));
  return m;
}

// Rows of a matrix with codes in its storage.
CanonicalMatrix rows_of(const CanonicalMatrix& m, int64_t first, int64_t count) {
  CanonicalMatrix rows;
  rows.n = count;
  rows.k = m.k;
  rows.key = m.key;
  const int64_t bytes = m.row_bytes(), scales = m.scale_cols();
  rows.storage.assign(m.storage.begin() + first * bytes,
                      m.storage.begin() + (first + count) * bytes);
  rows.codes = rows.storage;
  rows.scales.assign(m.scales.begin() + first * scales,
                     m.scales.begin() + (first + count) * scales);
  return rows;
}

// Two experts in one source each, read whole or in rows.
DescribedMatrix described(const QuantKey& key, bool in_rows) {
  const auto stored = std::make_shared<const CanonicalMatrix>(random_matrix(key));
  DescribedMatrix::Source source{.n = kRows,
                                 .file = "model.safetensors",
                                 .module = "layers.0.experts",
                                 .tensors = {"layers.0.experts.weight"}};
  source.read = [stored](ThreadPool&) -> Result<CanonicalMatrix> {
    return rows_of(*stored, 0, kRows);
  };
  if (in_rows) {
    source.read_rows = [stored](ThreadPool&, int64_t first,
                                int64_t count) -> Result<CanonicalMatrix> {
      return rows_of(*stored, first, count);
    };
  }
  return DescribedMatrix({.n = kRows, .k = kCols, .key = key}, {key, kFp8DynamicTokenSym},
                         {{source}, {source}}, nullptr);
}

TEST(Folded, ExpertsAndSlicesHaveValuesOfPackedWeights) {
  ThreadPool pool(2);
  for (const QuantKey& key : {int4_static_group(128), kMxfp4Static}) {
    for (const bool in_rows : {false, true}) {
      const std::vector<double> want = values(must(described(key, in_rows).expert(1)));
      DescribedMatrix matrix = described(key, in_rows);
      ASSERT_TRUE(matrix.fold());
      EXPECT_EQ(matrix.shape().key.dtype, DType::kF8E4M3);
      EXPECT_EQ(matrix.scheme().weight, matrix.shape().key);
      EXPECT_FALSE(has_residency(matrix.scheme()));
      EXPECT_EQ(values(must(matrix.expert(1))), want);
      std::vector<double> slices;
      ASSERT_TRUE(matrix.read_slices(0, pool, [&](const CanonicalMatrix& slice, int64_t first) {
        EXPECT_EQ(first * kCols, static_cast<int64_t>(slices.size()));
        EXPECT_EQ(slice.key, matrix.shape().key);
        const std::vector<double> some = values(slice);
        slices.insert(slices.end(), some.begin(), some.end());
      }));
      EXPECT_EQ(slices, want);
    }
  }
}

// As --parallel tp=2 divides matrices: after folding.
TEST(Folded, SharesOfRowsAndColumnsHaveValuesOfPackedWeights) {
  for (const QuantKey& key : {int4_static_group(128), kMxfp4Static}) {
    const std::vector<double> whole = values(must(described(key, false).expert(0)));
    DescribedMatrix rows = described(key, true), columns = described(key, false);
    ASSERT_TRUE(rows.fold());
    ASSERT_TRUE(columns.fold());
    rows = must(MatrixShare::rows(std::move(rows), {{kRows / 2, kRows}}));
    columns = must(MatrixShare::columns(std::move(columns), kCols / 2, kCols, true));
    EXPECT_EQ(values(must(rows.expert(0))),
              std::vector<double>(whole.begin() + kRows / 2 * kCols, whole.end()));
    std::vector<double> right;
    for (int64_t r = 0; r < kRows; ++r)
      right.insert(right.end(), whole.begin() + r * kCols + kCols / 2,
                   whole.begin() + (r + 1) * kCols);
    EXPECT_EQ(values(must(columns.expert(0))), right);
  }
}

TEST(Folded, LayersChangeBothMatricesOrNone) {
  const auto layer = [](const QuantKey& below) {
    DescribedWeights weights{
        {.num_experts = 2, .hidden_size = kCols, .intermediate_size = kRows / 2},
        described(int4_static_group(128), false),
        described(below, false)};
    weights.spec.scheme = weights.w13.scheme();
    return weights;
  };
  DescribedWeights folded = layer(int4_static_group(GroupShape::kAll));
  ASSERT_TRUE(fold(folded));
  EXPECT_EQ(name(folded.spec.scheme), "fp8-w8a8-g128-token");
  EXPECT_EQ(name(folded.w13.scheme()), "fp8-w8a8-g128-token");
  EXPECT_EQ(name(folded.w2.scheme()), "fp8-w8a8-channel");
  DescribedWeights kept = layer(int4_static_group(32));
  const Status refused = fold(kept);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().place, HasSubstr("layers.0.experts"));
  EXPECT_EQ(name(kept.w13.scheme()), "int4-w4afp8-g128");
  EXPECT_EQ(name(kept.spec.scheme), "int4-w4afp8-g128");
}

TEST(Folded, ErrorsOfRowsNameFileAndTensor) {
  CanonicalMatrix far = random_matrix(kMxfp4Static);
  far.scales[0] = std::ldexp(1.0f, -60);
  DescribedMatrix::Source source{.n = kRows, .file = "a.safetensors", .tensors = {"down.weight"}};
  const auto stored = std::make_shared<const CanonicalMatrix>(std::move(far));
  source.read = [stored](ThreadPool&) -> Result<CanonicalMatrix> {
    return rows_of(*stored, 0, kRows);
  };
  DescribedMatrix matrix({.n = kRows, .k = kCols, .key = kMxfp4Static},
                         {kMxfp4Static, kFp8DynamicTokenSym}, {{source}}, nullptr);
  ASSERT_TRUE(matrix.fold());
  const auto refused = matrix.expert(0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().file, "a.safetensors");
  EXPECT_THAT(refused.error().place, HasSubstr("tensor 'down.weight'"));
  EXPECT_THAT(refused.error().fact, HasSubstr("row 0"));
}

TEST(Folded, ParsesWordsAndListsThemOnError) {
  using enum WeightResidency;
  for (const auto residency : {kPacked, kFolded, kAuto})
    EXPECT_EQ(must(parse_weights(name(residency))), residency);
  for (const char* text : {"", "fp8", "Folded", "folded "}) {
    const auto refused = parse_weights(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().need, "packed, folded or auto");
  }
}

}  // namespace
}  // namespace moracle::folded_test
