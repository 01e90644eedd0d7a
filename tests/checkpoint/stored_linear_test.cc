// Tests linear layers from tensors in memory: sizes, values, and errors by name.
#include "checkpoint/memory/stored_linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "quant/codec.h"

namespace moracle::stored_linear_test {
namespace {

constexpr int64_t kN = 24, kK = 64;

template <class T>
TensorView view(const std::vector<T>& values, DType dtype, std::vector<int64_t> shape) {
  return {reinterpret_cast<const std::byte*>(values.data()), dtype, std::move(shape)};
}

StoredLinear linear(TensorView weight) {
  StoredLinear stored;
  stored.matrix = {.name = "weight", .input_name = "input_scale"};
  stored.matrix.weight = std::move(weight);
  return stored;
}

Result<DescribedMatrix> described(StoredLinear stored, std::string_view scheme) {
  return describe(std::move(stored), *parse_scheme(scheme));
}

std::string refusal(StoredLinear stored, std::string_view scheme) {
  const auto matrix = described(std::move(stored), scheme);
  return matrix.ok() ? "accepted" : matrix.error().to_string();
}

TEST(StoredLinear, FloatsAreUsedInPlace) {
  std::vector<float> floats(kN * kK);
  std::iota(floats.begin(), floats.end(), 1.f);
  const auto matrix = described(linear(view(floats, DType::kF32, {kN, kK})), "f32");
  ASSERT_TRUE(matrix.ok()) << matrix.error().to_string();
  EXPECT_EQ(matrix->shape().n, kN);
  EXPECT_EQ(matrix->shape().k, kK);
  EXPECT_EQ(matrix->source_bytes(), kN * kK * 4);
  const auto read = matrix->expert(0);
  ASSERT_TRUE(read.ok()) << read.error().to_string();
  EXPECT_EQ(read->codes.data(), reinterpret_cast<const std::byte*>(floats.data()));
}

// The same codes as bytes of two, as words of eight, and in the two packings of producers.
TEST(StoredLinear, ColumnsComeFromCodesInEveryPacking) {
  const std::vector<uint8_t> bytes(kN * kK / 2, 0x98);
  const std::vector<int32_t> words(kN * kK / 8, 0x98989898), zeros(kK / 32 * kN / 8, 0x77777777);
  const std::vector<float> scales(kN * kK / 32, 0.5f);
  struct Case {
    Packing packing;
    TensorView weight;
    std::vector<int64_t> scales;
  };
  const int64_t groups = kK / 32;
  for (const Case& one :
       {Case{Packing::kRows, view(bytes, DType::kU8, {kN, kK / 2}), {kN, groups}},
        Case{Packing::kRows, view(words, DType::kI32, {kN, kK / 8}), {kN, groups}},
        Case{Packing::kGptq, view(words, DType::kI32, {kK / 8, kN}), {groups, kN}},
        Case{Packing::kAwq, view(words, DType::kI32, {kK, kN / 8}), {groups, kN}}}) {
    StoredLinear stored = linear(one.weight);
    stored.packing = one.packing;
    stored.matrix.scales = view(scales, DType::kF32, one.scales);
    const auto matrix = described(std::move(stored), "int4-w4a16-g32");
    ASSERT_TRUE(matrix.ok()) << matrix.error().to_string();
    EXPECT_EQ(matrix->shape().n, kN);
    EXPECT_EQ(matrix->shape().k, kK);
    const auto read = matrix->expert(0);
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    std::vector<double> row(kK);
    dequantize_row(*read, 3, row.data());
    for (const double value : row) EXPECT_TRUE(value == 0 || value == 0.5) << value;
    EXPECT_GT(std::accumulate(row.begin(), row.end(), 0.), 0);
  }
}

TEST(StoredLinear, StaticActivationScaleBecomesTheMatrixsOwn) {
  const std::vector<uint8_t> codes(kN * kK, 1);
  const std::vector<float> scales(kN, 1), input = {0.25f};
  StoredLinear stored = linear(view(codes, DType::kU8, {kN, kK}));
  stored.matrix.scales = view(scales, DType::kF32, {kN});
  stored.matrix.input_scales = view(input, DType::kF32, {1});
  const auto matrix = described(std::move(stored), "fp8-w8a8-channel-static");
  ASSERT_TRUE(matrix.ok()) << matrix.error().to_string();
  EXPECT_THAT(matrix->input_scales(), ::testing::ElementsAre(0.25f));
}

TEST(StoredLinear, ErrorsShowTensorsAsTheCallerHasThem) {
  const std::vector<int8_t> codes(kN * kK, 1);
  std::vector<float> scales(kN, 1);
  StoredLinear stored = linear(view(codes, DType::kI8, {kN, kK}));
  EXPECT_EQ(refusal(stored, "int8-w8a8"),
            "weight_scale: needs f32, f16 or bf16 [24, 1]; it is missing");
  stored.matrix.scales = view(scales, DType::kF32, {3, 8});
  EXPECT_EQ(refusal(stored, "int8-w8a8"),
            "weight_scale: needs f32, f16 or bf16 [24, 1]; it is f32 [3, 8]");
  stored.matrix.scales = view(scales, DType::kF32, {kN});
  stored.matrix.weight.shape = {2, kN / 2, kK};
  EXPECT_EQ(refusal(stored, "int8-w8a8"), "weight: needs [rows, columns]; it is i8 [2, 12, 64]");
  stored.matrix.weight.shape = {kN, kK};
  scales[2] = std::numeric_limits<float>::quiet_NaN();
  const auto matrix = described(std::move(stored), "int8-w8a8");
  ASSERT_TRUE(matrix.ok()) << matrix.error().to_string();
  EXPECT_EQ(matrix->expert(0).error().to_string(),
            "weight_scale: needs finite numbers; element 2 is NaN or infinite");
}

}  // namespace
}  // namespace moracle::stored_linear_test
