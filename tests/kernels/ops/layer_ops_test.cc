// Tests the element-wise operations of a layer on every device against computation in double:
// combine, scale_rows, add_lora and convert.
#include <sys/mman.h>

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "kernels/ops/device_ops.h"

namespace moracle::layer_ops_test {
namespace {

using testing::rounded_to;

constexpr double kU = 0x1p-24;

class Combine : public testing::DeviceOpsTest {};
class LayerOps : public testing::DeviceOpsTest {};

struct Sums {
  int64_t tokens, top_k, cols;
  std::vector<int32_t> slot_row;
};
// The rows of all slots in random order. Every fourth slot, and all slots of token 5, have no row.
Sums shuffled_sums(std::mt19937& random) {
  Sums sums{7, 3, 300, std::vector<int32_t>(21)};
  std::iota(sums.slot_row.begin(), sums.slot_row.end(), 0);
  std::shuffle(sums.slot_row.begin(), sums.slot_row.end(), random);
  for (size_t slot = 0; slot < sums.slot_row.size(); slot += 4) sums.slot_row[slot] = -1;
  for (int64_t j = 0; j < sums.top_k; ++j) sums.slot_row[5 * sums.top_k + j] = -1;
  return sums;
}

TEST_P(Combine, AddsWeightedRowsOfEachToken) {
  const Sums cases[] = {shuffled_sums(random_), {3, 3, 1030, {4, 0, 2, -1, -1, -1, 5, -1, 1}}};
  for (const Sums& c : cases) {
    const int64_t slots = c.tokens * c.top_k;
    const std::vector<float> y = normal(slots * c.cols),
                             weights = testing::normal_floats(random_, slots);
    const Matrix from = matrix(y, slots, c.cols);
    for (const bool weighed : {true, false}) {
      for (const DType to : {DType::kF32, DType::kBF16, DType::kF16}) {
        SCOPED_TRACE(str(c.cols, " columns to ", name(to), weighed ? "" : ", without weights"));
        const Matrix out = blank(c.tokens, c.cols, to);
        expect_done(ops().combine(from, upload(c.slot_row), weighed ? upload(weights) : nullptr,
                                  c.top_k, out, {}));
        const std::vector<float> got = floats(out);
        const double rounding = to == DType::kF32 ? 0 : to == DType::kBF16 ? 0x1p-8 : 0x1p-11;
        for (int64_t i = 0; i < c.tokens * c.cols; ++i) {
          double want = 0, size = 0;
          bool has_rows = false;
          for (int64_t j = i / c.cols * c.top_k; j < (i / c.cols + 1) * c.top_k; ++j) {
            if (c.slot_row[j] < 0) continue;
            has_rows = true;
            const double term =
                (weighed ? double{weights[j]} : 1.0) * y[c.slot_row[j] * c.cols + i % c.cols];
            want += term;
            size += std::fabs(term);
          }
          ASSERT_NEAR(got[i], want,
                      f32_bound(size, static_cast<double>(c.top_k + 2) * kU * size +
                                          rounding * std::fabs(want) * 1.001 + 0x1p-25))
              << i;
          if (!has_rows) {
            ASSERT_EQ(got[i], 0) << "a token without rows";
            ASSERT_FALSE(std::signbit(got[i]));
          }
        }
      }
    }
  }
}

// A slot without a row adds exactly zero, even if its weight is NaN.
TEST_P(Combine, SkipsWeightOfSlotWithoutRow) {
  const Matrix out = blank(1, 2, DType::kF32);
  expect_done(ops().combine(matrix({1, 2}, 1, 2), upload(std::vector<int32_t>{-1, 0}),
                            upload(std::vector<float>{NAN, 0.5f}), 2, out, {}));
  EXPECT_EQ(floats(out), (std::vector<float>{0.5f, 1}));
}

// A row starts 2^33 bytes after the first. Only the page of that row is touched.
TEST_P(Combine, IndexesRowsBeyond32Bits) {
  if (!device_->host_visible()) GTEST_SKIP() << "needs memory that is reserved but not backed";
  const int64_t row = (int64_t{1} << 20) + 3, stride = 2048;
  const size_t bytes = static_cast<size_t>((row + 1) * stride) * sizeof(float);
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space of this size";
  const Matrix y{memory, DType::kF32, row + 1, 4, stride};
  const float values[] = {1, 2, 3, 4};
  std::copy_n(values, 4, static_cast<float*>(y.slice(row, 1).data));
  const int32_t slot_row[] = {static_cast<int32_t>(row)};
  const float weight = 2;
  const Matrix out = blank(1, 4, DType::kF32);
  expect_done(ops().combine(y, slot_row, &weight, 1, out, {}));
  EXPECT_EQ(floats(out), (std::vector<float>{2, 4, 6, 8}));
  ::munmap(memory, bytes);
}

MORACLE_ON_EVERY_DEVICE(Combine);

TEST_P(LayerOps, ScaleRowsMultipliesEachRowByItsWeight) {
  const int64_t rows = 5, cols = 33;
  const std::vector<float> x = normal(rows * cols), weights = {0.5f, -1.25f, 0, 3.3f, 1};
  const Matrix to = blank(rows, cols);
  expect_done(ops().scale_rows(matrix(x, rows, cols), upload(weights), to, {}));
  std::vector<float> want(x.size());
  for (int64_t i = 0; i < rows * cols; ++i) want[i] = x[i] * weights[i / cols];
  EXPECT_EQ(floats(to), rounded(want));
}

// Token 0 has adapter 1, token 1 none, token 2 adapter 0. Token 3 names an adapter that does not
// exist. Row 5 is past the last expert, so its token must not be read.
TEST_P(LayerOps, AddLoraAddsAdapterOfRowAndReportsUnknownIds) {
  const int64_t tokens = 4, k = 70, n = 22, experts = 3, slices = 2, adapters = 2, rows = 6;
  const std::vector<int32_t> offsets = {0, 2, 2, 5}, row_token = {0, 3, 1, 2, 3, 77},
                             lora_ids = {1, -1, 0, 9};
  const int64_t expert_of[] = {0, 0, 2, 2, 2, -1};
  for (const int64_t rank : {5, 600}) {
    SCOPED_TRACE(str("rank ", rank));
    const int64_t a_rows = adapters * experts * slices * rank, b_rows = adapters * experts * n;
    const std::vector<float> x = normal(tokens * k), y = normal(rows * n),
                             a = normal(a_rows * k, 0.1f), b = normal(b_rows * rank, 0.1f);
    int32_t* const tokens_of_rows = upload(row_token);
    const Matrix sums = matrix(y, rows, n, DType::kF32);
    expect_done(ops().add_lora(
        matrix(x, tokens, k), tokens_of_rows, {upload(offsets), tokens_of_rows, nullptr, nullptr},
        upload(lora_ids), adapters,
        {matrix(a, a_rows, k), matrix(b, b_rows, rank), experts, slices, rank, n}, sums, {}));
    const Status told = device_->synchronize();
    ASSERT_FALSE(told);
    EXPECT_EQ(told.error().place, "lora_ids");
    EXPECT_EQ(told.error().fact, "token 3 has 9");
    const std::vector<float> got = floats(sums);
    EXPECT_NE(got, y);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t token = expert_of[r] < 0 ? 1 : row_token[r], id = lora_ids[token];
      const bool adds = id >= 0 && id < adapters;
      const int64_t pair = id * experts + expert_of[r];
      std::vector<double> ax(slices * rank);
      for (int64_t j = 0; adds && j < slices * rank; ++j) {
        for (int64_t c = 0; c < k; ++c)
          ax[j] += double{a[(pair * slices * rank + j) * k + c]} * x[token * k + c];
      }
      for (int64_t i = 0; i < n; ++i) {
        double want = y[r * n + i];
        for (int64_t j = 0; adds && j < rank; ++j)
          want += double{b[(pair * n + i) * rank + j]} * ax[i / (n / slices) * rank + j];
        ASSERT_NEAR(got[r * n + i], want, adds ? 1e-3 : 0) << "row " << r << ", column " << i;
      }
    }
  }
}

// A linear layer has no plan of rows: row r is token r. Its adapters may change only some columns.
TEST_P(LayerOps, AddLoraTakesRowsAsTokensWithoutPlan) {
  const int64_t k = 40, cols = 30, first = 8, n = 12, rank = 3, adapters = 2;
  const std::vector<int32_t> lora_ids = {1, -1, 0, 1};
  const auto rows = static_cast<int64_t>(lora_ids.size());
  const std::vector<float> x = normal(rows * k), y = normal(rows * cols),
                           a = normal(adapters * rank * k, 0.1f),
                           b = normal(adapters * n * rank, 0.1f);
  const Matrix sums = matrix(y, rows, cols, DType::kF32);
  expect_done(
      ops().add_lora(matrix(x, rows, k), nullptr, {}, upload(lora_ids), adapters,
                     {matrix(a, adapters * rank, k), matrix(b, adapters * n, rank), 1, 1, rank, n},
                     columns(sums, first, n), {}));
  expect_done(device_->synchronize());
  const std::vector<float> got = floats(sums);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t id = lora_ids[r], i = c - first;
      if (id < 0 || i < 0 || i >= n) {
        ASSERT_EQ(got[r * cols + c], y[r * cols + c]) << "row " << r << ", column " << c;
        continue;
      }
      double want = y[r * cols + c];
      for (int64_t j = 0; j < rank; ++j) {
        double ax = 0;
        for (int64_t d = 0; d < k; ++d) ax += double{a[(id * rank + j) * k + d]} * x[r * k + d];
        want += b[(id * n + i) * rank + j] * ax;
      }
      ASSERT_NEAR(got[r * cols + c], want, 1e-4) << "row " << r << ", column " << c;
    }
  }
}

TEST_P(LayerOps, ConvertsBetweenAllFloatsAndPadsWithZeros) {
  struct Shape {
    int64_t rows, cols, padded, stride;
  };
  for (const Shape& s : {Shape{5, 19, 24, 32}, Shape{3, 1500, 1503, 1504}}) {
    const std::vector<float> x = testing::normal_floats(random_, s.rows * s.cols, 100);
    for (DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (DType to : {DType::kF32, DType::kBF16, DType::kF16}) {
        SCOPED_TRACE(str(s.cols, " columns, ", name(from), " to ", name(to)));
        const Matrix out = blank(s.rows, s.padded, to, s.stride);
        expect_done(ops().convert(matrix(x, s.rows, s.cols, from), out, {}));
        const std::vector<float> got = floats(out);
        for (int64_t r = 0; r < s.rows; ++r) {
          for (int64_t c = 0; c < s.padded; ++c) {
            const float want = c < s.cols ? rounded_to(to, rounded_to(from, x[r * s.cols + c])) : 0;
            ASSERT_EQ(got[r * s.stride + c], want) << "row " << r << ", column " << c;
          }
          EXPECT_TRUE(std::isnan(got[r * s.stride + s.padded]))
              << "past the columns nothing is written";
        }
      }
    }
  }
}

MORACLE_ON_EVERY_DEVICE(LayerOps);

}  // namespace
}  // namespace moracle::layer_ops_test
