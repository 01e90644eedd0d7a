#include "base/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/scalar.h"

namespace moracle::finite_test {
namespace {

// Checks every bit pattern of a type. The search finds exactly the patterns that are not finite.
template <class Word, class Value>
void expect_each(DType type, Value value) {
  for (uint32_t bits = 0; bits <= Word(-1); ++bits) {
    const auto word = static_cast<Word>(bits);
    std::byte data[sizeof word];
    std::memcpy(data, &word, sizeof word);
    ASSERT_EQ(first_not_finite(type, data, 1) == 0, !std::isfinite(value(word)))
        << name(type) << " " << bits;
  }
}

TEST(Finite, ClassifiesEveryCodeOfSmallTypes) {
  expect_each<uint16_t>(DType::kF16, f16_to_float);
  expect_each<uint16_t>(DType::kBF16, bf16_to_float);
  expect_each<uint8_t>(DType::kF8E4M3, e4m3_to_float);
  expect_each<uint8_t>(DType::kF8E8M0, e8m0_to_float);
  // E5M2 is the upper half of f16: five exponent bits.
  expect_each<uint8_t>(DType::kF8E5M2,
                       [](uint8_t bits) { return f16_to_float(static_cast<uint16_t>(bits << 8)); });
  expect_each<uint8_t>(DType::kI8, [](uint8_t) { return 0.0f; });
}

// One bad number at each index. Runs are longer and shorter than a step and start at odd addresses.
template <class T>
void expect_found(DType type, T good, T bad) {
  constexpr int64_t kCount = 1100;
  std::vector<std::byte> memory(kCount * sizeof(T) + 1);
  std::byte* const data = memory.data() + 1;
  const auto set = [&](int64_t i, T value) {
    std::memcpy(data + i * static_cast<int64_t>(sizeof(T)), &value, sizeof value);
  };
  for (int64_t i = 0; i < kCount; ++i) set(i, good);
  EXPECT_EQ(first_not_finite(type, data, kCount), -1);
  for (int64_t i = 0; i < kCount; ++i) {
    set(i, bad);
    ASSERT_EQ(first_not_finite(type, data, kCount), i) << name(type);
    ASSERT_EQ(first_not_finite(type, data, i), -1) << name(type);
    set(i, good);
  }
  set(3, bad);
  set(900, bad);
  EXPECT_EQ(first_not_finite(type, data, kCount), 3);
}

TEST(Finite, FindsFirstNonFiniteAtAnyIndex) {
  expect_found<double>(DType::kF64, 1e308, -INFINITY);
  expect_found<float>(DType::kF32, 3e38f, NAN);
  expect_found<uint16_t>(DType::kBF16, 0x7f7f, 0xff80);
  expect_found<uint16_t>(DType::kF16, 0xfbff, 0x7c01);
  expect_found<uint8_t>(DType::kF8E4M3, 0xfe, 0x7f);
  EXPECT_EQ(first_not_finite(DType::kF32, nullptr, 0), -1);
}

}  // namespace
}  // namespace moracle::finite_test
