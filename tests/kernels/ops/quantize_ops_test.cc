// Tests quantization of activations on every device against quant/activation.h and the definition.
#include <algorithm>
#include <bit>
#include <tuple>

#include "base/text.h"
#include "kernels/ops/device_ops.h"
#include "quant/activation.h"

namespace moracle::quantize_ops_test {
namespace {

class QuantizeOps : public testing::DeviceOpsTest {
 protected:
  /// Codes that are all 77, where each row starts `stride` bytes after the one before.
  Rows codes(int64_t rows, int64_t cols, int64_t stride, const QuantKey& key, int64_t groups) {
    return {{upload(std::vector<uint8_t>(rows * stride, 77)), key.dtype, rows, cols, stride},
            upload(std::vector<float>(rows * groups, NAN)),
            groups};
  }
  std::vector<uint8_t> codes_of(const Rows& rows) {
    return download(static_cast<const uint8_t*>(rows.values.data),
                    rows.values.rows * rows.values.stride);
  }
  std::vector<float> scales_of(const Rows& rows) {
    return download(rows.scales, rows.values.rows * rows.num_scales);
  }
};

TEST_P(QuantizeOps, ScalesEachRowSeparatelyAndPadsWithZeros) {
  const int64_t rows = 9, cols = 33, padded = 34, stride = 40;
  std::vector<float> x = normal(rows * cols);
  std::fill_n(&x[3 * cols], cols, 0.0f);
  for (int64_t c = 0; c < cols; ++c) x[4 * cols + c] *= 1000;
  x = rounded(std::move(x));
  const Rows to = codes(rows, padded, stride, kInt8DynamicTokenSym, 1);
  expect_done(ops().quantize(matrix(x, rows, cols), kInt8DynamicTokenSym, to, {}));
  const std::vector<uint8_t> got = codes_of(to);
  const std::vector<float> scales = scales_of(to);
  for (int64_t r = 0; r < rows; ++r) {
    int largest = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const int code = static_cast<int8_t>(got[r * stride + c]);
      largest = std::max(largest, std::abs(code));
      EXPECT_NEAR(code * double{scales[r]}, x[r * cols + c], 0.5001 * scales[r]);
    }
    EXPECT_EQ(largest, r == 3 ? 0 : 127);
    EXPECT_EQ(got[r * stride + cols], 0);
    EXPECT_EQ(got[r * stride + padded], 77) << "past the columns nothing is written";
  }
}

// A row of zeros, infinity, NaN, and the ends of the range.
TEST_P(QuantizeOps, MatchesReferenceBits) {
  const int64_t rows = 7, cols = 1300, padded = 1312;
  std::vector<float> x = normal(rows * cols, 3);
  std::fill_n(&x[2 * cols], cols, 0.0f);
  x[3 * cols + 40] = INFINITY, x[4 * cols + 1299] = NAN, x[5 * cols] = -3e38f;
  x[6 * cols + 9] = 1e-38f;
  x = rounded(std::move(x));
  const Matrix from = matrix(x, rows, cols);
  for (const QuantKey& key : {kInt8DynamicTokenSym, kFp8DynamicTokenSym, kFp8Dynamic128Sym,
                              fp8_dynamic_group(48), fp8_dynamic_group(600), kMxfp8Dynamic}) {
    SCOPED_TRACE(str(name(key.dtype), " in groups of ", key.group.cols));
    const int64_t groups = num_groups(key, cols);
    const Rows to = codes(rows, padded, padded, key, groups);
    expect_done(ops().quantize(from, key, to, {}));
    const std::vector<uint8_t> got = codes_of(to);
    const std::vector<float> scales = scales_of(to);
    std::vector<uint8_t> want(padded);
    std::vector<float> want_scales(groups);
    for (int64_t r = 0; r < rows; ++r) {
      quantize_row(key, &x[r * cols], cols, want.data(), want_scales.data());
      for (int64_t g = 0; g < groups; ++g) {
        const float scale = scales[r * groups + g];
        if (std::isnan(want_scales[g])) {
          EXPECT_TRUE(std::isnan(scale)) << "row " << r << ", group " << g;
        } else {
          EXPECT_EQ(std::bit_cast<uint32_t>(scale), std::bit_cast<uint32_t>(want_scales[g]))
              << "row " << r << ", group " << g;
        }
      }
      for (int64_t c = 0; c < padded; ++c)
        ASSERT_EQ(got[r * padded + c], c < cols ? want[c] : 0) << "row " << r << ", column " << c;
    }
  }
}

// Enough rows that a GPU thread has several vectors, with few and with many columns. The last rows
// fill no whole block, and the last columns no whole group.
TEST_P(QuantizeOps, ManyRowsMatchReferenceBits) {
  for (const auto& [key, rows, cols] :
       {std::tuple<QuantKey, int64_t, int64_t>{kFp8Dynamic128Sym, 4101, 2176},
        {kFp8Dynamic128Sym, 1401, 2880},
        {kFp8Dynamic128Sym, 5, 2912},
        {fp8_dynamic_group(256), 40, 1032},
        {kInt8DynamicTokenSym, 2801, 768},
        {kFp8DynamicTokenSym, 129, 16384}}) {
    SCOPED_TRACE(str(name(key.dtype), ", ", cols, " columns"));
    const std::vector<float> x = rounded(normal(rows * cols, 3));
    const int64_t groups = num_groups(key, cols);
    const Rows to = codes(rows, cols, cols, key, groups);
    expect_done(ops().quantize(matrix(x, rows, cols), key, to, {}));
    const std::vector<uint8_t> got = codes_of(to);
    const std::vector<float> scales = scales_of(to);
    std::vector<uint8_t> want(cols);
    std::vector<float> want_scales(groups);
    for (int64_t r = 0; r < rows; ++r) {
      quantize_row(key, &x[r * cols], cols, want.data(), want_scales.data());
      ASSERT_TRUE(std::equal(want.begin(), want.end(), &got[r * cols])) << "row " << r;
      ASSERT_TRUE(std::equal(want_scales.begin(), want_scales.end(), &scales[r * groups]))
          << "row " << r;
    }
  }
}

TEST_P(QuantizeOps, ToFloatsGivesDequantizedValues) {
  for (const auto& [cols, padded] : {std::pair<int64_t, int64_t>{70, 72}, {1300, 1312}}) {
    const int64_t rows = 5;
    const Matrix from = matrix(normal(rows * cols, 3), rows, cols);
    for (const QuantKey& key :
         {kInt8DynamicTokenSym, kFp8DynamicTokenSym, fp8_dynamic_group(32), kFp8Dynamic128Sym,
          fp8_dynamic_group(48), fp8_dynamic_group(600), kMxfp8Dynamic}) {
      SCOPED_TRACE(str(cols, " columns, ", name(key.dtype), " in groups of ", key.group.cols));
      const int64_t groups = num_groups(key, cols);
      const Rows as_codes = codes(rows, padded, padded, key, groups);
      const Rows as_floats{blank(rows, padded, DType::kF32),
                           upload(std::vector<float>(rows * groups)), groups};
      expect_done(ops().quantize(from, key, as_codes, {}));
      expect_done(ops().quantize(from, key, as_floats, {}));
      const std::vector<uint8_t> stored = codes_of(as_codes);
      const std::vector<float> scales = scales_of(as_codes), decoded = floats(as_floats.values);
      EXPECT_EQ(scales, scales_of(as_floats));
      for (int64_t i = 0; i < rows * padded; ++i) {
        const int64_t r = i / padded, c = i % padded;
        const float scale = c < cols ? scales[r * groups + c / group_cols(key, cols)] : 0;
        ASSERT_EQ(decoded[i], c < cols ? decode(key, stored[i]) * scale : 0.0f) << r << ", " << c;
      }
    }
  }
}

TEST_P(QuantizeOps, RejectsUnknownKeys) {
  const Matrix from = matrix(std::vector<float>(4, 1.0f), 1, 4);
  QuantKey fixed = kInt8DynamicTokenSym, grouped = kInt8DynamicTokenSym;
  fixed.dynamic = false;
  grouped.group.cols = 2;
  for (const QuantKey& key : {fixed, grouped, int4_static_group(32)}) {
    const Status done = ops().quantize(from, key, codes(1, 4, 4, kInt8DynamicTokenSym, 1), {});
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().kind, ErrorKind::kUnsupported);
  }
}

TEST_P(QuantizeOps, StoredScalesFollowExpertOfRow) {
  const Rows to{blank(3, 3, DType::kF32), upload(std::vector<float>(3)), 1};
  expect_done(ops().quantize_static(
      matrix({1, 2, 3, 1000, -5, 6}, 2, 3), upload(std::vector<int32_t>{1, 0, 1}),
      upload(std::vector<int32_t>{0, 1, 3}), 2, upload(std::vector<float>{1.0f, 0.5f}),
      kFp8StaticTensorSym, to, {}));
  EXPECT_THAT(scales_of(to), ::testing::ElementsAre(1.0f, 0.5f, 0.5f));
  EXPECT_THAT(floats(to.values), ::testing::ElementsAre(448, -5, 6, 1, 2, 3, 224, -5, 6))
      << "beyond 448 it saturates";
}

// Experts without rows lie between the others. Row 6 is past the last expert.
TEST_P(QuantizeOps, StaticWritesOnlyRowsOfExperts) {
  const int64_t tokens = 4, cols = 300, rows = 7;
  const std::vector<float> x = normal(tokens * cols), scales = {0.01f, 9.0f, 0.002f, 0.5f, 9.0f};
  const std::vector<int32_t> row_index = {3, 0, 1, 1, 2, 0, -7};
  const Rows to = codes(rows, cols, cols, kFp8StaticTensorSym, 1);
  expect_done(ops().quantize_static(matrix(x, tokens, cols), upload(row_index),
                                    upload(std::vector<int32_t>{0, 2, 2, 5, 6, 6}), 5,
                                    upload(scales), kFp8StaticTensorSym, to, {}));
  const std::vector<uint8_t> got = codes_of(to);
  const std::vector<float> got_scales = scales_of(to);
  const int64_t expert_of[] = {0, 0, 2, 2, 2, 3};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const uint8_t want =
          r == 6 ? uint8_t{77} : float_to_e4m3(x[row_index[r] * cols + c] / scales[expert_of[r]]);
      ASSERT_EQ(got[r * cols + c], want) << "row " << r << ", column " << c;
    }
    if (r < 6) {
      EXPECT_EQ(got_scales[r], scales[expert_of[r]]) << "row " << r;
    }
  }
}

MORACLE_ON_EVERY_DEVICE(QuantizeOps);

}  // namespace
}  // namespace moracle::quantize_ops_test
