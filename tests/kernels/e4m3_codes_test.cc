// Compares e4m3 codes of 4-bit weights with their values, for every code, and their order with that
// of the activations.
#include "kernels/cuda/operands/e4m3_codes.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "base/scalar.h"
#include "layout/fragment_order.h"
#include "layout/mma16.h"

namespace moracle::e4m3_codes_test {
namespace {

constexpr std::array<float, 8> kMagnitudes{0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

float value_of(uint32_t word, int byte) {
  return e4m3_to_float(static_cast<uint8_t>(word >> (8 * byte)));
}

TEST(E4m3Codes, IntegersAreExact) {
  for (int code = -8; code < 8; ++code) {
    // The other bytes and the high nibbles are of other codes.
    const uint32_t nibbles = 0x9c305a70u | static_cast<uint32_t>(code & 15) << 16;
    EXPECT_EQ(value_of(cuda::e4m3_of_nibbles(nibbles), 2) * cuda::kE4m3IntegerUnit, code);
    for (int zero = -8; zero <= 8; ++zero) {
      const uint32_t base = static_cast<uint32_t>(120 - zero) * 0x01010101u;
      const uint32_t codes = cuda::e4m3_of_differences(nibbles ^ 0x88888888u, base);
      EXPECT_EQ(value_of(codes, 2) * cuda::kE4m3IntegerUnit, code - zero) << code << ", " << zero;
    }
  }
}

TEST(E4m3Codes, ScaledE2m1IsNearestCodeAndExactFor14Binades) {
  for (int down = 0; down < cuda::kE2m1Downs; ++down) {
    for (int code = 0; code < 8; ++code) {
      const float exact = std::ldexp(kMagnitudes[code], 6 - down);
      const uint8_t got = cuda::e4m3_of_e2m1(code, down);
      EXPECT_EQ(got, float_to_e4m3(exact)) << code << " times 2^" << 6 - down;
      if (down <= 14) {
        EXPECT_EQ(e4m3_to_float(got), exact);
      }
    }
  }
  EXPECT_EQ(cuda::e4m3_of_e2m1(7, cuda::kE2m1Downs - 1), 0);  // farther scales use this entry
}

// A lane's words of a k-block become words t and 4 + t of the first operand. Byte by byte, their
// columns must be those of the activations, whose bytes are the numbers of their columns here.
template <class Spread, class ValueOf>
void expect_columns(fragment_order::Bytes bytes, Spread spread, ValueOf value) {
  for (int row = 0; row < 2; ++row) {
    std::array<uint64_t, 32> lanes{};  // of rows 0 and 1, four lanes have codes
    const auto code_of = [&](int column) { return (column * 7 + row * 5 + column / 16) % 16; };
    for (int column = 0; column < mma16::kCols; ++column) {
      const int bit = mma16::block_bit(4, row, column);
      lanes[bit / 64] |= static_cast<uint64_t>(code_of(column)) << (bit % 64);
    }
    std::array<uint32_t, 8> natural, stored{};
    for (uint32_t w = 0; w < 8; ++w) natural[w] = 0x03020100u + w * 0x04040404u;
    for (int t = 0; t < 4; ++t) {
      const uint32_t first = natural[2 * t], second = natural[2 * t + 1];
      stored[fragment_order::position(1, 2 * t)] =
          fragment_order::permute_bytes(first, second, bytes.first);
      stored[fragment_order::position(1, 2 * t + 1)] =
          fragment_order::permute_bytes(first, second, bytes.second);
    }
    for (int t = 0; t < 4; ++t) {
      uint32_t fours[2];
      spread(static_cast<uint32_t>(lanes[t] >> (32 * row)), fours);
      for (int half = 0; half < 2; ++half) {
        for (int byte = 0; byte < 4; ++byte) {
          const int column = static_cast<int>(stored[4 * half + t] >> (8 * byte) & 0xffu);
          EXPECT_EQ(column / 8, t);
          EXPECT_EQ(value_of(fours[half], byte), value(code_of(column))) << "column " << column;
        }
      }
    }
  }
}

TEST(E4m3Codes, IntegersMeetTheirActivations) {
  expect_columns(
      fragment_order::kInt4,
      [](uint32_t eight, uint32_t(&fours)[2]) {
        fours[0] = cuda::e4m3_of_nibbles(eight), fours[1] = cuda::e4m3_of_nibbles(eight >> 4);
      },
      [](int code) {
        return static_cast<float>(code < 8 ? code : code - 16) / cuda::kE4m3IntegerUnit;
      });
}

TEST(E4m3Codes, E2m1MeetsItsActivationsInEveryBinade) {
  constexpr cuda::E2m1Table kTable;
  for (int down = 0; down <= 14; ++down) {
    expect_columns(
        fragment_order::kFp4,
        [&](uint32_t eight, uint32_t(&fours)[2]) {
          cuda::spread_e2m1_codes(eight, kTable.words[2 * down], kTable.words[2 * down + 1], fours);
        },
        [&](int code) {
          const float size = std::ldexp(kMagnitudes[code % 8], 6 - down);
          return code < 8 ? size : -size;
        });
  }
}

}  // namespace
}  // namespace moracle::e4m3_codes_test
