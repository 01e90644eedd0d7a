// Tests decoders on all codes and exponents, and the conversion of activation rows for a kernel.
#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "kernels/ukernel_cases.h"

#if defined(__x86_64__)

namespace moracle::cpu::lines_decode_test {
namespace {

float bf16_at(Lines& lines, int64_t i) {
  return bf16_to_float(lines.at<uint16_t>(i));
}

// The order of each eight columns in decoded bf16, and the position of one column.
constexpr int kDecoded[8] = {0, 2, 1, 3, 4, 6, 5, 7};
int64_t place_of(int64_t column, ColumnOrder order) {
  if (order == ColumnOrder::kPlain) return column;
  return column / 8 * 8 + std::find(kDecoded, kDecoded + 8, column % 8) - kDecoded;
}

struct DecoderCase {
  const LineDecoders* decoders;
  const RowConverters* rows;
  Isa needs;
  const char* name;
};
const DecoderCase kDecoders[] = {
    {&kAvx2Decoders, &kAvx2Rows, Isa::kAvx2, "avx2"},
    {&kAvx512Decoders, &kAvx512Rows, kVnni, "avx512"},
};

class LineDecoding : public ::testing::TestWithParam<DecoderCase> {
 protected:
  void SetUp() override {
    if (!has(GetParam().needs)) GTEST_SKIP() << "needs " << names(GetParam().needs);
  }
  const LineDecoders& decoders_ = *GetParam().decoders;
  const RowConverters& rows_ = *GetParam().rows;
};

// One code byte per row and column: every code appears at every position of a line.
TEST_P(LineDecoding, DecodesEveryByte) {
  for (int shift = 0; shift < 256; ++shift) {
    Lines codes(1), wide(2);
    for (int i = 0; i < 64; ++i) codes.data()[i] = static_cast<std::byte>(i + shift);
    const LineCodes c{.codes = codes.data(), .lines = 1, .to = wide.data()};
    // Row r's columns 0 to 3 are bytes 4r to 4r + 3; two columns of each row make a line of bf16.
    auto place = [&](int r, int column) {
      return place_of(column, decoders_.order) / 2 * 32 + 2 * r +
             place_of(column, decoders_.order) % 2;
    };
    decoders_.i8_to_bf16(c);
    for (int i = 0; i < 64; ++i)
      ASSERT_EQ(bf16_at(wide, place(i / 4, i % 4)), static_cast<int8_t>(i + shift));
    decoders_.e4m3_to_bf16(c);
    for (int i = 0; i < 64; ++i) {
      const float want = e4m3_to_float(static_cast<uint8_t>(i + shift));
      const float got = bf16_at(wide, place(i / 4, i % 4));
      ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << got << " " << want;
      ASSERT_EQ(std::signbit(got), std::signbit(want));
    }
  }
}

// Lines of normal numbers take another code path than lines with zeros.
TEST_P(LineDecoding, DecodesNormalNumbersTimesPowerOfTwo) {
  for (int first = 8; first < 0x7f; ++first) {
    Lines codes(1), wide(2);
    for (int i = 0; i < 64; ++i)
      codes.data()[i] = static_cast<std::byte>((8 + (first - 8 + i) % 0x77) | (i % 2 * 0x80));
    for (int power : {0, 1, 17, 126, 127, 128, 237, 238}) {
      const auto exponent = static_cast<uint8_t>(power);
      LineCodes c{.codes = codes.data(), .lines = 1, .to = wide.data()};
      c.exponent = &exponent;
      c.exponent_lanes = 1;
      decoders_.e4m3_to_bf16(c);
      for (int i = 0; i < 64; ++i) {
        const int64_t at = place_of(i % 4, decoders_.order) / 2 * 32 + 2 * (i / 4) +
                           place_of(i % 4, decoders_.order) % 2;
        const float want =
            std::ldexp(e4m3_to_float(static_cast<uint8_t>(codes.data()[i])), power - 127);
        ASSERT_EQ(bf16_at(wide, at), std::fabs(want) < 0x1p-126f ? 0 : want) << power;
      }
    }
  }
}

TEST_P(LineDecoding, DecodesEveryNibblePair) {
  for (int shift = 0; shift < 256; shift += 64) {
    Lines codes(1), wide(4), bytes(2);
    for (int i = 0; i < 64; ++i) codes.data()[i] = static_cast<std::byte>(i + shift);
    LineCodes c{.codes = codes.data(), .lines = 1, .to = wide.data()};
    auto nibble = [&](int r, int column) {
      return (4 * r + column % 4 + shift) >> (column / 4 * 4) & 15;
    };
    auto each = [&](auto check) {
      for (int r = 0; r < 16; ++r) {
        for (int column = 0; column < 8; ++column) check(r, column);
      }
    };
    auto place = [&](int r, int column) {
      return place_of(column, decoders_.order) / 2 * 32 + 2 * r +
             place_of(column, decoders_.order) % 2;
    };
    auto integer = [&](int r, int column) { return (nibble(r, column) ^ 8) - 8; };
    decoders_.i4_to_bf16(c);
    each(
        [&](int r, int column) { ASSERT_EQ(bf16_at(wide, place(r, column)), integer(r, column)); });
    int8_t zeros[16];
    for (int r = 0; r < 16; ++r) zeros[r] = static_cast<int8_t>(r - 8);
    c.zero = zeros;
    decoders_.i4_to_bf16(c);
    each([&](int r, int column) {
      ASSERT_EQ(bf16_at(wide, place(r, column)), integer(r, column) - zeros[r]);
    });
    c.zero = nullptr;
    uint8_t exponents[16];
    for (int r = 0; r < 16; ++r) exponents[r] = static_cast<uint8_t>(120 + r);
    c.exponent = exponents;
    decoders_.e2m1_to_bf16(c);
    each([&](int r, int column) {
      const float value = e2m1_to_float(static_cast<uint8_t>(nibble(r, column)));
      ASSERT_EQ(bf16_at(wide, place(r, column)), std::ldexp(value, r - 7));
    });
    c.exponent = nullptr;
    c.to = bytes.data();
    decoders_.i4_to_int8(c);
    auto byte_place = [](int r, int column) { return column / 4 * 64 + 4 * r + column % 4; };
    each([&](int r, int column) {
      ASSERT_EQ(bytes.at<int8_t>(byte_place(r, column)), integer(r, column));
    });
    decoders_.e2m1_to_int8(c);
    each([&](int r, int column) {
      ASSERT_EQ(bytes.at<int8_t>(byte_place(r, column)),
                2 * e2m1_to_float(static_cast<uint8_t>(nibble(r, column))));
    });
  }
}

TEST_P(LineDecoding, PowersOfTwoBelowBf16RangeBecomeZero) {
  Lines codes(1), wide(2);
  std::memset(codes.data(), 1, 64);  // 2^-9
  uint8_t exponents[16] = {};        // 2^-127
  exponents[1] = 9 + 127 - 126;      // the smallest normal number
  decoders_.e4m3_to_bf16(
      {.codes = codes.data(), .lines = 1, .to = wide.data(), .exponent = exponents});
  EXPECT_EQ(bf16_at(wide, 0), 0.0f);
  EXPECT_EQ(bf16_at(wide, 2), std::ldexp(1.0f, -126));
  // NaN codes decode to NaN.
  std::memset(codes.data(), 0x7f, 64);
  for (int r = 0; r < 16; ++r) exponents[r] = static_cast<uint8_t>(17 * r);
  decoders_.e4m3_to_bf16(
      {.codes = codes.data(), .lines = 1, .to = wide.data(), .exponent = exponents});
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(std::isnan(bf16_at(wide, i)));
  // One power for all fp4 rows: far and near.
  Lines more(4);
  std::memset(codes.data(), 0x52, 64);  // 1 and 3
  for (int e : {1, 2, 100, 252, 253}) {
    const auto power = static_cast<uint8_t>(e);
    decoders_.e2m1_to_bf16({.codes = codes.data(),
                            .lines = 1,
                            .to = more.data(),
                            .exponent = &power,
                            .exponent_lanes = 1});
    for (int i = 0; i < 128; ++i)
      EXPECT_EQ(bf16_at(more, i), std::ldexp(i < 64 ? 1.0f : 3.0f, e - 127)) << e;
  }
}

TEST_P(LineDecoding, DecodesExponentsToPowersOfTwo) {
  std::vector<uint8_t> exponents(256);
  for (int e = 0; e < 256; ++e) exponents[e] = static_cast<uint8_t>(e);
  std::vector<float> to(256);
  for (bool half : {false, true}) {
    decoders_.powers_of_two(exponents.data(), 256, half, to.data());
    for (int e = 0; e < 255; ++e) {
      const float power = std::ldexp(1.0f, e - 127 - half);
      EXPECT_EQ(to[e], power < 0x1p-126f ? 0 : power) << e;
    }
    EXPECT_TRUE(std::isnan(to[255]));
  }
}

TEST_P(LineDecoding, ActivationRowsMatchScalarConversion) {
  std::mt19937 random(1);
  for (int64_t count : {0, 1, 15, 16, 17, 31, 32, 33, 100}) {
    std::vector<float> x(count);
    std::vector<uint8_t> codes(count);
    for (float& v : x) v = std::bit_cast<float>(static_cast<uint32_t>(random()));
    for (uint8_t& c : codes) c = static_cast<uint8_t>(random());
    const auto* integers = reinterpret_cast<const int8_t*>(codes.data());
    for (ColumnOrder order : {ColumnOrder::kPlain, ColumnOrder::kDecoded}) {
      if (rows_.f32_to_bf16 == nullptr) break;  // nothing multiplies bf16 there
      const bool plain = order == ColumnOrder::kPlain;
      const int64_t stored = plain ? count : (count + 7) / 8 * 8;
      std::vector<uint16_t> to(stored + 1, 0xabcd), rest(stored + 1, 0xabcd);
      auto* bytes = reinterpret_cast<std::byte*>(to.data());
      auto place = [&](int64_t i) { return place_of(i, order); };
      rows_.f32_to_bf16(x.data(), count, order, bytes, reinterpret_cast<std::byte*>(rest.data()));
      for (int64_t i = 0; i < count; ++i) {
        const float got = bf16_to_float(to[place(i)]), want = bf16_to_float(float_to_bf16(x[i]));
        EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << x[i];
        if (std::isfinite(got) && std::fabs(x[i]) > 1e-30f) {
          EXPECT_LE(std::fabs(x[i] - got - bf16_to_float(rest[place(i)])),
                    0x1p-16f * std::fabs(x[i]));
        }
      }
      for (int64_t i = count; i < stored; ++i) EXPECT_EQ(to[place(i)] | rest[place(i)], 0);
      EXPECT_EQ(rest[stored], 0xabcd);
      rows_.e4m3_to_bf16(codes.data(), count, order, bytes);
      for (int64_t i = 0; i < count; ++i) {
        const float got = bf16_to_float(to[place(i)]), want = e4m3_to_float(codes[i]);
        EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want)));
      }
      rows_.int8_to_bf16(integers, count, order, bytes);
      for (int64_t i = 0; i < count; ++i) EXPECT_EQ(bf16_to_float(to[place(i)]), integers[i]);
      EXPECT_EQ(to[stored], 0xabcd);
    }
    std::vector<float> wide(count + 1, 7);
    auto* wide_bytes = reinterpret_cast<std::byte*>(wide.data());
    rows_.int8_to_f32(integers, count, wide_bytes);
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(wide[i], integers[i]);
    rows_.e4m3_to_f32(codes.data(), count, wide_bytes);
    for (int64_t i = 0; i < count; ++i) {
      const float want = e4m3_to_float(codes[i]);
      EXPECT_TRUE(wide[i] == want || (std::isnan(wide[i]) && std::isnan(want)));
    }
    EXPECT_EQ(wide[count], 7);
    std::vector<std::byte> copy(count + 1, std::byte{7});
    std::vector<int32_t> sums(count / 24 + 1), want(count / 24 + 1);
    rows_.copy_int8(integers, count, 24, copy.data(), sums.data());
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_EQ(copy[i], static_cast<std::byte>(codes[i]));
      want[i / 24] += integers[i];
    }
    EXPECT_EQ(sums, want);
    EXPECT_EQ(copy[count], std::byte{7});
  }
}

TEST_P(LineDecoding, FloatsAreSumsOfInt8Parts) {
  constexpr int64_t kRun = 64, kStride = 256;
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const int64_t count : {64, 128, 200}) {
    const int64_t runs = (count + kRun - 1) / kRun;
    for (const float size : {0.0f, 1e-38f, 1e-6f, 1.0f, 1e30f}) {
      std::vector<float> x(count);
      for (float& v : x) v = size * normal(random);
      std::vector<int8_t> codes(kFloatParts * kStride);
      std::vector<int32_t> sums(kFloatParts * runs);
      std::vector<float> scales(kFloatParts * runs);
      rows_.f32_to_parts(x.data(), count, kRun, runs, reinterpret_cast<std::byte*>(codes.data()),
                         kStride, sums.data(), scales.data());
      for (int64_t r = 0; r < runs; ++r) {
        const int64_t end = std::min(count, (r + 1) * kRun);
        double largest = 0;
        for (int64_t i = r * kRun; i < end; ++i)
          largest = std::max(largest, std::fabs(double{x[i]}));
        std::vector<int32_t> want(kFloatParts);
        for (int64_t i = r * kRun; i < end; ++i) {
          double value = 0;
          for (int p = 0; p < kFloatParts; ++p) {
            const int code = codes[p * kStride + i];
            ASSERT_LE(std::abs(code), 127);
            want[p] += code;
            value += double{scales[p * runs + r]} * code;
          }
          // Half a step of 2^-23, and the rounding of the product and of three scales.
          ASSERT_LE(std::fabs(value - x[i]), 0x1p-22 * largest + 1e-37) << x[i];
        }
        for (int p = 0; p < kFloatParts; ++p) EXPECT_EQ(sums[p * runs + r], want[p]);
      }
    }
  }
  std::vector<float> x(2 * kRun, 1.0f), scales(kFloatParts * 2);
  std::vector<int8_t> codes(kFloatParts * kStride);
  std::vector<int32_t> sums(kFloatParts * 2);
  x[3] = INFINITY;
  rows_.f32_to_parts(x.data(), 2 * kRun, kRun, 2, reinterpret_cast<std::byte*>(codes.data()),
                     kStride, sums.data(), scales.data());
  for (int p = 0; p < kFloatParts; ++p) {
    EXPECT_TRUE(std::isnan(scales[2 * p]));
    EXPECT_FALSE(std::isnan(scales[2 * p + 1]));
  }
}

// Every code at every place of a row block, with zero points, exponents or scales, against the
// value in double, rounded once.
class DecodingToF32 : public ::testing::TestWithParam<KernelCase> {
 protected:
  void SetUp() override {
    if (!has(GetParam().needs)) GTEST_SKIP() << "needs " << names(GetParam().needs);
  }
};

TEST_P(DecodingToF32, GivesScaledValueOfEveryCode) {
  const LineDecoders& decoders = *GetParam().kernels->decoders;
  int8_t zeros[16];
  uint8_t exponents[16];
  float scales[16];
  for (int r = 0; r < 16; ++r) {
    zeros[r] = static_cast<int8_t>(r - 8);
    exponents[r] = static_cast<uint8_t>(110 + 2 * r);
    scales[r] = 0.3f * static_cast<float>(r + 1);
  }
  const struct {
    void (*decode)(const LineCodes&);
    int bits;
    bool integers;
    double (*value)(uint8_t code);
  } kinds[] = {
      {decoders.i4_to_f32, 4, true, [](uint8_t c) { return double((c ^ 8) - 8); }},
      {decoders.i8_to_f32, 8, true,
       [](uint8_t c) { return static_cast<double>(static_cast<int8_t>(c)); }},
      {decoders.e4m3_to_f32, 8, false, [](uint8_t c) { return double{e4m3_to_float(c)}; }},
      {decoders.e2m1_to_f32, 4, false, [](uint8_t c) { return double{e2m1_to_float(c)}; }}};
  for (const auto& kind : kinds) {
    for (int shift = 0; shift < 256; ++shift) {
      Lines codes(2), made(16);
      for (int i = 0; i < 2 * kLineBytes; ++i)
        codes.data()[i] = static_cast<std::byte>(i * 3 + shift);
      for (const bool scaled : {false, true}) {
        LineCodes c{.codes = codes.data(), .lines = 2, .to = made.data()};
        if (kind.integers && scaled) c.zero = zeros;
        if (!kind.integers && !scaled) c.exponent = exponents;
        if (scaled) c.scale = scales;
        kind.decode(c);
        const int columns = 32 / kind.bits;
        for (int i = 0; i < 2 * columns * 16; ++i) {
          const int column = i / 16, r = i % 16, in = column % columns;
          const auto byte = codes.at<uint8_t>(column / columns * kLineBytes + 4 * r + in % 4);
          const auto code = static_cast<uint8_t>(kind.bits == 8 ? byte : byte >> (in / 4 * 4) & 15);
          double value = kind.value(code);
          if (c.zero != nullptr) value -= zeros[r];
          if (c.exponent != nullptr) value *= std::ldexp(1.0, exponents[r] - 127);
          const auto want = static_cast<float>(scaled ? value * scales[r] : value);
          const auto got = made.at<float>(i);
          ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
              << got << " " << want << " code " << int{code} << " row " << r;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Isa, DecodingToF32,
    ::testing::Values(KernelCase{&kPortableLines, LineArithmetic::kF32, Isa::kNone, "portable"},
                      KernelCase{&kAvx2Lines, LineArithmetic::kF32, Isa::kAvx2, "avx2"},
                      KernelCase{&kAvx512Lines, LineArithmetic::kF32, kVnni, "avx512"}),
    case_name);
INSTANTIATE_TEST_SUITE_P(Isa, LineDecoding, ::testing::ValuesIn(kDecoders),
                         [](const auto& param) { return param.param.name; });

// Compares every decoder bit for bit on codes, exponents and zero points of every kind.
TEST(LineDecoders, BothInstructionSetsGiveSameLines) {
  if (!has(kVnni | Isa::kAvx2)) GTEST_SKIP() << "needs both";
  using Decode = void (*LineDecoders::*)(const LineCodes&);
  std::mt19937 random(11);
  constexpr int64_t kLines = 12, kGroup = 4, kGroups = kLines / kGroup;
  Lines codes(kLines), made[2] = {Lines(8 * kLines), Lines(8 * kLines)};
  int8_t zeros[kGroups * 16];
  uint8_t exponents[kGroups * 16];
  float scales[16];
  for (int round = 0; round < 64; ++round) {
    const int middle = round % 2 == 0 ? 127 : static_cast<int>(random() % 256);
    for (int64_t i = 0; i < kLines * kLineBytes; ++i)
      codes.data()[i] = static_cast<std::byte>(random());
    for (int8_t& z : zeros) z = static_cast<int8_t>(random());
    for (uint8_t& e : exponents)
      e = static_cast<uint8_t>(round % 4 < 2 ? middle + static_cast<int>(random() % 16) - 8
                                             : random());
    for (float& s : scales)
      s = std::bit_cast<float>(0x3f800000u + (static_cast<uint32_t>(random()) >> 9));
    auto compare = [&](Decode decode, int64_t to_lines, const LineCodes& like) {
      for (int i = 0; i < 2; ++i) {
        std::memset(made[i].data(), 0x5a, 8 * kLines * kLineBytes);
        LineCodes c = like;
        c.codes = codes.data();
        c.lines = kLines;
        c.to = made[i].data();
        (kDecoders[i].decoders->*decode)(c);
      }
      ASSERT_EQ(std::memcmp(made[0].data(), made[1].data(), 8 * kLines * kLineBytes), 0) << round;
      if (to_lines < 8) {
        ASSERT_EQ(made[0].at<uint8_t>(to_lines * kLines * kLineBytes), 0x5a);
      }
    };
    LineCodes plain, integers, powers, one_power, scaled;
    integers.zero = zeros;
    powers.exponent = one_power.exponent = exponents;
    one_power.exponent_lanes = 1;
    scaled.scale = scales;
    integers.group_lines = powers.group_lines = one_power.group_lines = kGroup;
    compare(&LineDecoders::i4_to_int8, 2, plain);
    compare(&LineDecoders::e2m1_to_int8, 2, plain);
    // bf16 columns may have another order; f32 columns may not. f32 is decoded group by group.
    integers.group_lines = powers.group_lines = one_power.group_lines = 0;
    for (const LineCodes& c : {plain, integers, scaled}) {
      compare(&LineDecoders::i4_to_f32, 8, c);
      compare(&LineDecoders::i8_to_f32, 4, c);
    }
    for (const LineCodes& c : {plain, powers, one_power, scaled}) {
      compare(&LineDecoders::e4m3_to_f32, 4, c);
      compare(&LineDecoders::e2m1_to_f32, 8, c);
    }
    float powers_made[2][kGroups * 16];
    for (bool half : {false, true}) {
      for (int i = 0; i < 2; ++i)
        kDecoders[i].decoders->powers_of_two(exponents, kGroups * 16, half, powers_made[i]);
      ASSERT_EQ(std::memcmp(powers_made[0], powers_made[1], sizeof powers_made[0]), 0);
    }
  }
}

}  // namespace
}  // namespace moracle::cpu::lines_decode_test

#endif
