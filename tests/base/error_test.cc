// Tests errors as values: one line that names file, place, need and fact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "base/text.h"
#include "base/try.h"
#include "moracle/base.h"

namespace moracle::error_test {
namespace {

using ::testing::HasSubstr;

TEST(Error, MessageIsOneLineWithFilePlaceNeedAndFact) {
  const Error error{ErrorKind::kBadFile, "a.safetensors", "tensor x", "bf16 [2]", "it is f32 [2]"};
  EXPECT_EQ(error.to_string(), "a.safetensors: tensor x: needs bf16 [2]; it is f32 [2]");
}

TEST(Error, MessageOmitsEmptyParts) {
  const auto text = [](const char* file, const char* place, const char* need, const char* fact) {
    return Error{ErrorKind::kIo, file, place, need, fact}.to_string();
  };
  EXPECT_EQ(text("", "", "", ""), "");
  EXPECT_EQ(text("f", "", "", ""), "f");
  EXPECT_EQ(text("f", "p", "", ""), "f: p");
  EXPECT_EQ(text("", "p", "", "lost"), "p: lost");
  EXPECT_EQ(text("", "", "n", ""), "needs n");
  EXPECT_EQ(text("f", "", "n", "m"), "f: needs n; m");
  EXPECT_EQ(text("", "p", "n", "m"), "p: needs n; m");
}

TEST(Error, MessageStaysOneLineForAnyFileContent) {
  const Error error{ErrorKind::kBadFile, "a\nb", "c\r\nd", "e\nf", "g\rh\n"};
  const std::string line = error.to_string();
  EXPECT_EQ(line.find_first_of("\r\n"), std::string::npos) << line;
  EXPECT_EQ(line, "a\\nb: c\\r\\nd: needs e\\nf; g\\rh\\n");
}

TEST(Error, MessageStaysShortForAnyFileContent) {
  const std::string flood(100'000, 'x');
  const std::string line = Error{ErrorKind::kBadFile, flood, flood, flood, flood}.to_string();
  EXPECT_LT(line.size(), 20'000u);
  EXPECT_NE(line.find("… (100000 bytes)"), std::string::npos);
}

TEST(Result, HoldsAValueOrAnError) {
  const Result<int> good = 7;
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, 7);
  const Result<int> bad = Error{ErrorKind::kCancelled, "", "", "", "stopped"};
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().kind, ErrorKind::kCancelled);
  EXPECT_EQ(bad.error().fact, "stopped");
}

TEST(Result, MovesNonCopyableValues) {
  Result<std::unique_ptr<int>> held = std::make_unique<int>(5);
  ASSERT_TRUE(held);
  EXPECT_EQ(**held, 5);
  EXPECT_EQ(*held->get(), 5);
  const std::unique_ptr<int> taken = *std::move(held);
  EXPECT_EQ(*taken, 5);
}

TEST(Result, DistinguishesStringValueFromError) {
  const Result<std::string> value = std::string("text");
  const Result<std::string> error = Error{.fact = "text"};
  EXPECT_TRUE(value);
  EXPECT_FALSE(error);
}

TEST(Result, WithoutValueIsSuccessUnlessItHoldsAnError) {
  const Status good;
  EXPECT_TRUE(good);
  const Status bad = Error{ErrorKind::kIo, "f", "", "", "gone"};
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().file, "f");
}

// In every build the process ends with the reason of the failed call. Matchers, because regcomp()
// is Oniguruma's in these programs, and a sanitizer's regexec() is the C library's.
TEST(ResultDeathTest, ReadingValueOfFailureAbortsWithItsError) {
  const Error error{ErrorKind::kIo, "model", "config.json", "a file", "it does not exist"};
  const auto text =
      HasSubstr("value of a failed result: model: config.json: needs a file; it does not exist");
  Result<std::string> failed = error;
  const Result<std::string> constant = error;
  EXPECT_DEATH(*failed, text);
  EXPECT_DEATH(*constant, text);
  EXPECT_DEATH(*std::move(failed), text);
  EXPECT_DEATH(failed->clear(), text);
  EXPECT_DEATH(static_cast<void>(constant->size()), text);
  EXPECT_DEATH(failed.value(), text);
  EXPECT_DEATH(constant.value(), text);
}

TEST(ResultDeathTest, ReadingErrorOfSuccessAbortsWithMessage) {
  Result<std::string> value = std::string("text");
  Status done;
  const auto text = HasSubstr("error of a result that has none");
  EXPECT_DEATH(static_cast<void>(value.error()), text);
  EXPECT_DEATH(static_cast<void>(std::move(value).error()), text);
  EXPECT_DEATH(static_cast<void>(done.error()), text);
  EXPECT_DEATH(static_cast<void>(std::move(done).error()), text);
}

Result<int> half(int value) {
  if (value % 2 != 0) return Error{.place = str(value), .need = "an even number"};
  return value / 2;
}
Result<int> quarter(int value) {
  MORACLE_TRY(const int once, half(value));
  int twice = 0;
  MORACLE_TRY(twice, half(once));
  return twice;
}
Status check_even(int value) {
  MORACLE_CHECK(half(value));
  return {};
}

TEST(Try, ReturnsFirstErrorAndUnwrapsValues) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_EQ(quarter(3).error().place, "3");
  EXPECT_EQ(quarter(6).error().place, "3");
  EXPECT_TRUE(check_even(2));
  EXPECT_EQ(check_even(5).error().place, "5");
}

TEST(DTypes, HaveSafetensorsNamesAndWidths) {
  const struct {
    DType type;
    const char* name;
    int bits;
  } rows[] = {
      {DType::kF32, "f32", 32},       {DType::kF16, "f16", 16},      {DType::kBF16, "bf16", 16},
      {DType::kF64, "f64", 64},       {DType::kI64, "i64", 64},      {DType::kI32, "i32", 32},
      {DType::kI16, "i16", 16},       {DType::kI8, "i8", 8},         {DType::kU8, "u8", 8},
      {DType::kI4, "i4", 4},          {DType::kBool, "bool", 8},     {DType::kF8E4M3, "f8_e4m3", 8},
      {DType::kF8E5M2, "f8_e5m2", 8}, {DType::kF8E8M0, "f8_e8m0", 8}};
  for (const auto& row : rows) {
    EXPECT_EQ(name(row.type), row.name);
    EXPECT_EQ(bits(row.type), row.bits) << row.name;
  }
}

TEST(TensorViews, CountElementsAndRoundBitsUpToBytes) {
  const auto view = [](DType type, std::vector<int64_t> shape) {
    return TensorView{nullptr, type, std::move(shape)};
  };
  EXPECT_EQ(view(DType::kBF16, {128, 256}).num_elements(), 32768);
  EXPECT_EQ(view(DType::kBF16, {128, 256}).num_bytes(), 65536u);
  EXPECT_EQ(view(DType::kI4, {3, 5}).num_bytes(), 8u);
  EXPECT_EQ(view(DType::kF32, {}).num_elements(), 1) << "a scalar";
  EXPECT_EQ(view(DType::kF32, {4, 0, 2}).num_bytes(), 0u);
  EXPECT_EQ(to_string(view(DType::kBF16, {128, 256})), "bf16 [128, 256]");
  // The count has 64 bits.
  EXPECT_EQ(view(DType::kF32, {262144, 8, 2048}).num_bytes(), size_t{262144} * 8 * 2048 * 4);
}

// Finds rows beyond 2^31 elements. The test reads no memory.
TEST(Matrices, SliceAtOffsetsBeyond32Bits) {
  const auto at = [](const Matrix& m) { return reinterpret_cast<uintptr_t>(m.data); };
  const int64_t rows = int64_t{262144} * 8, cols = 2048;
  Matrix m{reinterpret_cast<void*>(uintptr_t{4096}), DType::kF32, rows, cols, cols};
  const Matrix last = m.slice(rows - 1, 1);
  EXPECT_EQ(at(last) - at(m), static_cast<uintptr_t>(rows - 1) * cols * 4);
  EXPECT_EQ(last.rows, 1);
  EXPECT_EQ(last.stride, cols);
  m.dtype = DType::kI8;
  m.stride = cols + 64;
  EXPECT_EQ(at(m.slice(rows - 1, 1)) - at(m), static_cast<uintptr_t>(rows - 1) * (cols + 64));
}

TEST(Matrices, FactoriesSetDtypeAndStrideAndConvertToConst) {
  float f32[6] = {};
  uint16_t half[6] = {};
  const auto check = [](const ConstMatrix& m, const void* data, DType dtype) {
    EXPECT_EQ(m.data, data);
    EXPECT_EQ(m.dtype, dtype);
    EXPECT_EQ(m.rows, 2);
    EXPECT_EQ(m.cols, 3);
    EXPECT_EQ(m.stride, 3);
  };
  check(Matrix::f32(f32, 2, 3), f32, DType::kF32);
  check(Matrix::f16(half, 2, 3), half, DType::kF16);
  check(Matrix::bf16(half, 2, 3), half, DType::kBF16);
  const float* const read_only = f32;
  check(ConstMatrix::f32(read_only, 2, 3), f32, DType::kF32);
  check(ConstMatrix::f16(half, 2, 3), half, DType::kF16);
  check(ConstMatrix::bf16(half, 2, 3), half, DType::kBF16);
}

}  // namespace
}  // namespace moracle::error_test
