// Tests the operations around the layers of a model on every device against computation in double:
// embed, rms_norm, layer_norm, add, add_rms_norm and copy_heads.
#include <numeric>
#include <utility>

#include "base/text.h"
#include "kernels/ops/device_ops.h"
#include "support/golden_blocks.h"

namespace moracle::model_ops_test {
namespace {

using testing::rounded_to;

constexpr double kU = 0x1p-24;
constexpr float kEpsilon = 1e-6f;

class ModelOps : public testing::DeviceOpsTest {
 protected:
  /// Compares `got` with the RMSNorm of each run of weight.size() columns of `x` [rows, cols].
  void expect_rms_norm(const std::vector<float>& got, const std::vector<float>& x, int64_t cols,
                       const std::vector<float>& weight) {
    const auto size = static_cast<int64_t>(weight.size());
    ASSERT_EQ(got.size(), x.size());
    double squares = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t c = static_cast<int64_t>(i) % cols;
      if (c % size == 0) {
        squares = 0;
        for (size_t j = i; j < i + weight.size(); ++j) squares += double{x[j]} * x[j];
      }
      const double want =
          x[i] / std::sqrt(squares / static_cast<double>(size) + kEpsilon) * weight[c % size];
      ASSERT_NEAR(got[i], want, bound(want, 8 * kU * std::fabs(want))) << i;
    }
  }
};

TEST_P(ModelOps, EmbedCopiesRowsOfIds) {
  std::vector<int32_t> many(300);
  for (int32_t& id : many) id = static_cast<int32_t>(random_() % 50);
  struct Table {
    int64_t vocab, cols;
    std::vector<int32_t> ids;
  };
  for (const Table& t : {Table{7, 12, {6, 0, 3, 3}}, Table{50, 70, many}}) {
    const std::vector<float> values = testing::normal_floats(random_, t.vocab * t.cols);
    const auto tokens = static_cast<int64_t>(t.ids.size());
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(str(t.vocab, " rows of ", name(type)));
      const Matrix table = matrix(values, t.vocab, t.cols, type);
      const TensorView view{static_cast<const std::byte*>(table.data), type, {t.vocab, t.cols}};
      const Matrix out = blank(tokens, t.cols);
      expect_done(ops().embed(view, upload(t.ids), out, {}));
      const std::vector<float> got = floats(out);
      for (int64_t i = 0; i < tokens * t.cols; ++i) {
        const float value = values[t.ids[i / t.cols] * t.cols + i % t.cols];
        ASSERT_EQ(got[i], rounded_to(dtype(), rounded_to(type, value))) << i;
      }
    }
  }
}

// GPUs get such tables converted to f32.
TEST_P(ModelOps, EmbedDequantizesRowsOfBlocksOnCpu) {
  if (!is_cpu()) GTEST_SKIP() << "embeddings on GPUs are floats";
  for (const DType type : {DType::kQ8_0, DType::kQ4K, DType::kQ6K, DType::kIQ3S}) {
    SCOPED_TRACE(name(type));
    const testing::GoldenBlocks golden(type);
    const int64_t vocab = golden.count / 2, cols = 2 * block(type).elements;
    const TensorView table{golden.blocks.data(), type, {vocab, cols}};
    const std::vector<int32_t> ids = {3, 0, static_cast<int32_t>(vocab) - 1, 3};
    const Matrix out = blank(4, cols);
    expect_done(ops().embed(table, upload(ids), out, {}));
    const std::vector<float> got = floats(out);
    for (int64_t i = 0; i < 4 * cols; ++i)
      ASSERT_EQ(got[i], golden.values[ids[i / cols] * cols + i % cols]) << i;
  }
}

TEST_P(ModelOps, EmbedRejectsTableOfInt64) {
  const auto* const table =
      reinterpret_cast<const std::byte*>(upload(std::vector<int64_t>{1, 2, 3, 4}));
  const Status done =
      ops().embed({table, DType::kI64, {2, 2}}, upload(std::vector<int32_t>{1}), blank(1, 2), {});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind, ErrorKind::kUnsupported);
}

// Runs of one row and runs of several heads, with and without a multiple of eight columns.
TEST_P(ModelOps, RmsNormDividesEachRunByItsRootMeanSquare) {
  const int64_t rows = 6;
  for (const auto& [cols, size] :
       {std::pair<int64_t, int64_t>{48, 48}, {48, 16}, {33, 11}, {8, 1}, {384, 128}}) {
    SCOPED_TRACE(str(cols, " columns, runs of ", size));
    std::vector<float> x = normal(rows * cols, 3);
    std::fill_n(&x[2 * cols], cols, 0.0f);
    const std::vector<float> weight = testing::normal_floats(random_, size);
    const float* const weights = upload(weight);
    const Matrix out = blank(rows, cols), in_place = matrix(x, rows, cols);
    expect_done(ops().rms_norm(matrix(x, rows, cols), weights, size, kEpsilon, out, {}));
    expect_rms_norm(floats(out), x, cols, weight);
    expect_done(ops().rms_norm(in_place, weights, size, kEpsilon, in_place, {}));
    EXPECT_EQ(floats(in_place), floats(out)) << "input and output may be the same";
  }
}

TEST_P(ModelOps, LayerNormSubtractsMeanAndAddsBias) {
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{5, 1}, {7, 33}, {3, 384}, {2, 4100}}) {
    SCOPED_TRACE(str(rows, " rows of ", cols));
    std::vector<float> x = normal(rows * cols, 3);
    for (float& value : x) value += 2;
    x = rounded(std::move(x));
    const std::vector<float> weight = testing::normal_floats(random_, cols),
                             bias = testing::normal_floats(random_, cols);
    const float *const weights = upload(weight), *const biases = upload(bias);
    const Matrix out = blank(rows, cols), in_place = matrix(x, rows, cols);
    expect_done(ops().layer_norm(matrix(x, rows, cols), weights, biases, kEpsilon, out, {}));
    const std::vector<float> got = floats(out);
    for (int64_t r = 0; r < rows; ++r) {
      const float* const row = &x[r * cols];
      const double count = static_cast<double>(cols),
                   mean = std::accumulate(row, row + cols, 0.0) / count;
      double squares = 0;
      for (int64_t c = 0; c < cols; ++c) squares += (row[c] - mean) * (row[c] - mean);
      const double scale = 1 / std::sqrt(squares / count + kEpsilon);
      for (int64_t c = 0; c < cols; ++c) {
        const double product = (row[c] - mean) * scale * weight[c], want = product + bias[c];
        // A sum in f32 moves the mean by at most a few of its last bits.
        const double moved = 32 * kU * (std::fabs(mean) + 3) * scale * std::fabs(weight[c]);
        ASSERT_NEAR(got[r * cols + c], want,
                    bound(want, moved + 16 * kU * (std::fabs(product) + std::fabs(want))))
            << r << ", " << c;
      }
    }
    expect_done(ops().layer_norm(in_place, weights, biases, kEpsilon, in_place, {}));
    EXPECT_EQ(floats(in_place), got) << "input and output may be the same";
  }
}

TEST_P(ModelOps, AddRmsNormStoresSumAndNormalizesIt) {
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{5, 2048}, {3, 130}, {70, 256}, {2, 7168}}) {
    SCOPED_TRACE(str(rows, " rows of ", cols));
    const std::vector<float> x = normal(rows * cols), y = normal(rows * cols),
                             weight = testing::normal_floats(random_, cols);
    std::vector<float> sum(x.size());
    for (size_t i = 0; i < x.size(); ++i) sum[i] = x[i] + y[i];
    sum = rounded(std::move(sum));
    const Matrix both = matrix(x, rows, cols), out = blank(rows, cols);
    expect_done(ops().add_rms_norm(both, matrix(y, rows, cols), upload(weight), kEpsilon, out, {}));
    EXPECT_EQ(floats(both), sum);
    expect_rms_norm(floats(out), sum, cols, weight);
  }
}

TEST_P(ModelOps, AddAddsInPlace) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{11, 23}, {3, 384}}) {
    const std::vector<float> x = normal(rows * cols), y = normal(rows * cols);
    std::vector<float> want(x.size());
    for (size_t i = 0; i < x.size(); ++i) want[i] = x[i] + y[i];
    const Matrix sum = matrix(x, rows, cols);
    expect_done(ops().add(sum, matrix(y, rows, cols), {}));
    EXPECT_EQ(floats(sum), rounded(std::move(want)));
  }
}

// Each head of `both` is [4 columns of a key, 3 of a value]. All heads share two more key columns.
TEST_P(ModelOps, CopyHeadsCopiesColumnsOfEachHead) {
  const int64_t rows = 5, heads = 3;
  const std::vector<float> both = normal(rows * heads * 7), shared = normal(rows * 2);
  const Matrix from = matrix(both, rows, heads * 7), keys = blank(rows, heads * 6),
               values = blank(rows, heads * 3);
  expect_done(ops().copy_heads(from, 7, keys, 6, heads, 4, {}));
  expect_done(ops().copy_heads(matrix(shared, rows, 2), 0, columns(keys, 4, heads * 6 - 4), 6,
                               heads, 2, {}));
  expect_done(ops().copy_heads(columns(from, 4, heads * 7 - 4), 7, values, 3, heads, 3, {}));
  const std::vector<float> got_keys = floats(keys), got_values = floats(values);
  for (int64_t head = 0; head < rows * heads; ++head) {
    const float* const source = &both[head * 7];
    for (int64_t c = 0; c < 4; ++c) EXPECT_EQ(got_keys[head * 6 + c], source[c]);
    for (int64_t c = 0; c < 2; ++c)
      EXPECT_EQ(got_keys[head * 6 + 4 + c], shared[head / heads * 2 + c]);
    for (int64_t c = 0; c < 3; ++c) EXPECT_EQ(got_values[head * 3 + c], source[4 + c]);
  }
}

TEST_P(ModelOps, CopyHeadsLeavesOtherColumns) {
  const int64_t rows = 3, head_dim = 128, cols = 3 * head_dim, count = 100;
  const std::vector<float> x = normal(rows * cols), y = normal(rows * cols);
  const Matrix to = matrix(y, rows, cols);
  expect_done(ops().copy_heads(matrix(x, rows, cols), 0, to, head_dim, 3, count, {}));
  const std::vector<float> got = floats(to);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int64_t c = i % head_dim;
    EXPECT_EQ(got[i], c < count ? x[i / cols * cols + c] : y[i]) << i;
  }
}

TEST_P(ModelOps, ZeroRowsDoNothing) {
  const Matrix none{nullptr, dtype(), 0, 8, 8};
  Batch empty_batch;
  empty_batch.page = 256;
  expect_done(ops().convert(none, none, {}));
  expect_done(ops().quantize(none, kInt8DynamicTokenSym, {none, nullptr, 1}, {}));
  expect_done(ops().activate({}, 4, none, none, {}));
  expect_done(ops().combine(none, nullptr, nullptr, 2, none, {}));
  expect_done(ops().scale_rows(none, nullptr, none, {}));
  expect_done(ops().add(none, none, {}));
  expect_done(ops().rms_norm(none, nullptr, 8, kEpsilon, none, {}));
  expect_done(ops().rotate(none, {4, 2}, nullptr, nullptr, {}));
  expect_done(ops().copy_heads(none, 2, none, 4, 2, 2, {}));
  expect_done(ops().append(none, none, empty_batch, {}, {}));
  expect_done(ops().attend(none, empty_batch, {2, 1, 4, 4, 0.5f}, none, nullptr, {}));
}

MORACLE_ON_EVERY_DEVICE(ModelOps);

}  // namespace
}  // namespace moracle::model_ops_test
