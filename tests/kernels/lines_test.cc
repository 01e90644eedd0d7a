// The line kernels against the same sums in plain code: codes decoded exhaustively, blocks of every
// number of rows, scales, zero points and what comes out of them.
#include "kernels/cpu/lines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "base/scalar.h"
#include "moracle/oracle.h"

#if defined(__x86_64__)

namespace moracle::cpu {
namespace {

bool has(Isa isa) {
  return missing(isa, Machine::here().cpu.isa) == Isa::kNone;
}
constexpr Isa kVnni = Isa::kAvx512 | Isa::kAvx512Vnni;

/// Bytes on a 64-byte boundary.
class Lines {
 public:
  explicit Lines(int64_t lines) : bytes_((lines + 1) * kLineBytes) {}
  std::byte* data() {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (kLineBytes - at % kLineBytes) % kLineBytes;
  }
  template <class T>
  T at(int64_t i) {
    T value;
    std::memcpy(&value, data() + i * static_cast<int64_t>(sizeof value), sizeof value);
    return value;
  }

 private:
  std::vector<std::byte> bytes_;
};

float bf16_at(Lines& lines, int64_t i) {
  return bf16_to_float(lines.at<uint16_t>(i));
}

// The columns of each eight in the order that decoded bf16 has them, and where one is.
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

// One byte of codes for each row and column: every code stands at every place of a line.
TEST_P(LineDecoding, OfEveryByteIsItsValue) {
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

// Lines of normal numbers only go another way than those with zeros.
TEST_P(LineDecoding, OfNormalNumbersIsTheirValueTimesThePower) {
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

TEST_P(LineDecoding, OfEveryPairOfNibblesIsItsValue) {
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

TEST_P(LineDecoding, OfPowersOfTwoBeyondWhatBf16HoldsIsZero) {
  Lines codes(1), wide(2);
  std::memset(codes.data(), 1, 64);  // 2^-9
  uint8_t exponents[16] = {};        // 2^-127
  exponents[1] = 9 + 127 - 126;      // the smallest normal number
  decoders_.e4m3_to_bf16(
      {.codes = codes.data(), .lines = 1, .to = wide.data(), .exponent = exponents});
  EXPECT_EQ(bf16_at(wide, 0), 0.0f);
  EXPECT_EQ(bf16_at(wide, 2), std::ldexp(1.0f, -126));
  // What is no number stays none.
  std::memset(codes.data(), 0x7f, 64);
  for (int r = 0; r < 16; ++r) exponents[r] = static_cast<uint8_t>(17 * r);
  decoders_.e4m3_to_bf16(
      {.codes = codes.data(), .lines = 1, .to = wide.data(), .exponent = exponents});
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(std::isnan(bf16_at(wide, i)));
  // One power for all rows, of fp4: far and near.
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

TEST_P(LineDecoding, OfHalfFloatsIsExactAndScalesMultiply) {
  Lines codes(1), wide(2);
  auto* halves = reinterpret_cast<uint16_t*>(codes.data());
  for (int i = 0; i < 32; ++i) halves[i] = float_to_f16(0.25f * static_cast<float>(i) - 3);
  LineCodes c{.codes = codes.data(), .lines = 1, .to = wide.data()};
  decoders_.f16_to_f32(c);
  for (int i = 0; i < 32; ++i)
    EXPECT_EQ(wide.at<float>(i % 2 * 16 + i / 2), 0.25f * static_cast<float>(i) - 3);
  for (int i = 0; i < 32; ++i) halves[i] = float_to_bf16(static_cast<float>(i));
  kAvx512Decoders.bf16_to_f32(c);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(wide.at<float>(i % 2 * 16 + i / 2), static_cast<float>(i));
  // Lines as decoders leave them, back in order.
  Lines pairs(2), columns(4);
  for (int i = 0; i < 64; ++i)
    reinterpret_cast<uint16_t*>(pairs.data())[i] = float_to_bf16(static_cast<float>(i));
  float scales[16];
  for (int r = 0; r < 16; ++r) scales[r] = static_cast<float>(r + 1);
  c = {.codes = pairs.data(), .lines = 2, .to = columns.data()};
  c.scale = scales;
  decoders_.decoded_to_f32(c);
  for (int column = 0; column < 4; ++column) {
    for (int r = 0; r < 16; ++r) {
      const int64_t at = place_of(column, decoders_.order) / 2 * 32 + 2 * r +
                         place_of(column, decoders_.order) % 2;
      EXPECT_EQ(columns.at<float>(column * 16 + r), static_cast<float>(at * (r + 1)));
    }
  }
}

TEST_P(LineDecoding, OfExponentsIsAPowerOfTwo) {
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

TEST_P(LineDecoding, OfRowsOfActivationsIsThatOfTheScalarRules) {
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

INSTANTIATE_TEST_SUITE_P(Isa, LineDecoding, ::testing::ValuesIn(kDecoders),
                         [](const auto& param) { return param.param.name; });

// Every decoder on codes, exponents and zero points of every kind: bit for bit.
TEST(LineDecoders, OfBothInstructionSetsMakeTheSameLines) {
  if (!has(kVnni | Isa::kAvx2)) GTEST_SKIP() << "needs both";
  using Decode = void (*LineDecoders::*)(const LineCodes&);
  std::mt19937 random(11);
  constexpr int64_t kLines = 12, kGroup = 4, kGroups = kLines / kGroup;
  Lines codes(kLines), made[2] = {Lines(4 * kLines), Lines(4 * kLines)};
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
        std::memset(made[i].data(), 0x5a, 4 * kLines * kLineBytes);
        LineCodes c = like;
        c.codes = codes.data();
        c.lines = kLines;
        c.to = made[i].data();
        (kDecoders[i].decoders->*decode)(c);
      }
      ASSERT_EQ(std::memcmp(made[0].data(), made[1].data(), 4 * kLines * kLineBytes), 0) << round;
      if (to_lines < 4) {
        ASSERT_EQ(made[0].at<uint8_t>(to_lines * kLines * kLineBytes), 0x5a);
      }
    };
    // Columns of bf16 may be in other orders; as f32 they are not.
    auto compare_bf16 = [&](Decode decode, int64_t to_lines, const LineCodes& like) {
      Lines wide[2] = {Lines(8 * kLines), Lines(8 * kLines)};
      for (int i = 0; i < 2; ++i) {
        LineCodes c = like;
        c.codes = codes.data();
        c.lines = kLines;
        c.to = made[i].data();
        (kDecoders[i].decoders->*decode)(c);
        LineCodes whole;
        whole.codes = made[i].data();
        whole.lines = to_lines * kLines;
        whole.to = wide[i].data();
        whole.scale = like.scale;
        kDecoders[i].decoders->decoded_to_f32(whole);
      }
      ASSERT_EQ(std::memcmp(wide[0].data(), wide[1].data(), 2 * to_lines * kLines * kLineBytes), 0)
          << round;
    };
    LineCodes plain, integers, powers, one_power, scaled;
    integers.zero = zeros;
    powers.exponent = one_power.exponent = exponents;
    one_power.exponent_lanes = 1;
    scaled.scale = scales;
    integers.group_lines = powers.group_lines = one_power.group_lines = kGroup;
    compare(&LineDecoders::i4_to_int8, 2, plain);
    compare(&LineDecoders::e2m1_to_int8, 2, plain);
    compare(&LineDecoders::f16_to_f32, 2, plain);
    compare(&LineDecoders::bf16_to_f32, 2, plain);
    compare_bf16(&LineDecoders::i4_to_bf16, 4, plain);
    compare_bf16(&LineDecoders::i4_to_bf16, 4, integers);
    compare_bf16(&LineDecoders::i8_to_bf16, 2, plain);
    compare_bf16(&LineDecoders::i8_to_bf16, 2, integers);
    for (const LineCodes& c : {plain, powers, one_power}) {
      compare_bf16(&LineDecoders::e4m3_to_bf16, 2, c);
      compare_bf16(&LineDecoders::e2m1_to_bf16, 4, c);
    }
    compare_bf16(&LineDecoders::i8_to_bf16, 2, scaled);
    compare_bf16(&LineDecoders::i4_to_bf16, 4, scaled);
    float powers_made[2][kGroups * 16];
    for (bool half : {false, true}) {
      for (int i = 0; i < 2; ++i)
        kDecoders[i].decoders->powers_of_two(exponents, kGroups * 16, half, powers_made[i]);
      ASSERT_EQ(std::memcmp(powers_made[0], powers_made[1], sizeof powers_made[0]), 0);
    }
  }
}

struct KernelCase {
  const LineKernels* kernels;
  Arithmetic arithmetic;
  Isa needs;
  const char* name;
};
constexpr Isa kAvxVnni = Isa::kAvx2 | Isa::kAvxVnni;
const KernelCase kCases[] = {
    {&kAvx2Lines, Arithmetic::kInt8, Isa::kAvx2, "avx2_int8"},
    {&kAvx2Lines, Arithmetic::kF32, Isa::kAvx2, "avx2_f32"},
    {&kAvxVnniLines, Arithmetic::kInt8, kAvxVnni, "avx_vnni_int8"},
    {&kAvxVnniLines, Arithmetic::kF32, kAvxVnni, "avx_vnni_f32"},
    {&kAvx512Lines, Arithmetic::kInt8, kVnni, "avx512_int8"},
    {&kAvx512Lines, Arithmetic::kF32, kVnni, "avx512_f32"},
    {&kAvx512Bf16Lines, Arithmetic::kBf16, kVnni | Isa::kAvx512Bf16, "avx512_bf16"},
    {&kAmxLines, Arithmetic::kInt8, kVnni | Isa::kAmxInt8, "amx_int8"},
    {&kAmxLines, Arithmetic::kBf16, kVnni | Isa::kAmxBf16, "amx_bf16"},
};

class LineBlocks : public ::testing::TestWithParam<KernelCase> {
 protected:
  void SetUp() override {
    if (!has(GetParam().needs)) GTEST_SKIP() << "needs " << names(GetParam().needs);
  }
  // Small integers: exact in every arithmetic, in any order.
  static constexpr int64_t kNumLines = 32;
  int per_line() const {
    return GetParam().arithmetic == Arithmetic::kInt8   ? 4
           : GetParam().arithmetic == Arithmetic::kBf16 ? 2
                                                        : 1;
  }
  void put(std::byte* at, int64_t i, int value) const {
    switch (GetParam().arithmetic) {
      case Arithmetic::kInt8:
        at[i] = static_cast<std::byte>(value);
        break;
      case Arithmetic::kBf16:
        reinterpret_cast<uint16_t*>(at)[i] = float_to_bf16(static_cast<float>(value));
        break;
      case Arithmetic::kF32:
        reinterpret_cast<float*>(at)[i] = static_cast<float>(value);
        break;
    }
  }
  const bool in_parts_ = GetParam().kernels == &kAmxLines;
  // Codes of activations, as LineBlock limits them.
  const int least_x_ = GetParam().kernels == &kAvx2Lines ? -127 : -128;
  void multiply(const LineBlock& block) const {
    const LineKernels& k = *GetParam().kernels;
    if (k.begin != nullptr) k.begin();
    switch (GetParam().arithmetic) {
      case Arithmetic::kInt8:
        k.int8(block);
        break;
      case Arithmetic::kBf16:
        k.bf16(block);
        break;
      case Arithmetic::kF32:
        k.f32(block);
        break;
    }
    if (k.end != nullptr) k.end();
  }
};

TEST_P(LineBlocks, AreScaledSumsOfProductsForEveryNumberOfRows) {
  std::mt19937 random(7);
  auto small = [&](int most) { return static_cast<int>(random() % (2 * most + 1)) - most; };
  const int64_t cols = kNumLines * per_line();
  const bool integers = GetParam().arithmetic == Arithmetic::kInt8;
  const int64_t stride = kNumLines * 4 + 64;
  Lines w[2] = {Lines(kNumLines), Lines(kNumLines)}, x((kMaxBlockRows + 2) * stride / 64);
  std::vector<int> weights[2], rows((kMaxBlockRows + 2) * cols);
  for (int p = 0; p < 2; ++p) {
    weights[p].resize(16 * cols);
    for (int64_t c = 0; c < cols; ++c) {
      for (int n = 0; n < 16; ++n) {
        weights[p][n * cols + c] = integers && c == 3 ? -128 : small(9);
        put(w[p].data() + c / per_line() * 64, n * per_line() + c % per_line(),
            weights[p][n * cols + c]);
      }
    }
  }
  std::vector<int32_t> x_sums(kMaxBlockRows + 2);
  for (int r = 0; r < kMaxBlockRows + 2; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      rows[r * cols + c] = integers && c == 3 ? (r % 2 ? 127 : least_x_) : small(9);
      put(x.data() + r * stride, c, rows[r * cols + c]);
      x_sums[r] += rows[r * cols + c];
    }
  }
  std::vector<int32_t> unit_sums(kMaxBlockRows * 4);
  for (int r = 0; r < kMaxBlockRows; ++r) {
    for (int64_t c = 0; c < cols; ++c) unit_sums[r * 4 + c / (cols / 4)] += rows[r * cols + c];
  }
  float x_scales[kMaxBlockRows], w_scales[2][16];
  int8_t zeros[2][16];
  for (int i = 0; i < kMaxBlockRows; ++i) x_scales[i] = static_cast<float>(1 << (i % 4));
  for (int i = 0; i < 32; ++i) {
    w_scales[i / 16][i % 16] = static_cast<float>(1 << (i % 3));
    zeros[i / 16][i % 16] = static_cast<int8_t>(i - 16);
  }
  for (int count = 1; count <= kMaxBlockRows; ++count) {
    for (int panels = 1; panels <= 2; ++panels) {
      for (bool scaled : {false, true}) {
        // The same line by line of two halves of a tile, where nothing differs between units.
        const int units = !scaled && count % 3 == 0 ? 4 : 1;
        std::vector<float> sums[2];
        LineBlock block{.x = x.data(), .x_stride = stride, .rows = count, .panels = panels};
        block.units = units;
        block.unit_lines = kNumLines / units;
        block.x_sum = units == 1 ? x_sums.data() : unit_sums.data();
        block.x_sum_stride = units;
        for (int p = 0; p < panels; ++p) {
          sums[p].assign(count * 16 + 1, 5.0f);
          block.lines[p] = w[p].data();
          block.sum[p] = sums[p].data();
          block.w_scale[p] = scaled ? w_scales[p] : nullptr;
          block.w_zero[p] = scaled && integers ? zeros[p] : nullptr;
        }
        if (scaled) block.x_scale = x_scales, block.x_scale_stride = 1;
        // The second part of each value: the row two further on, where there is one.
        const bool parts = GetParam().arithmetic == Arithmetic::kBf16 && scaled && in_parts_;
        if (parts) block.x_rest = 2 * stride;
        block.overwrite = count % 2 == 0;
        const float before = block.overwrite ? 0 : 5;
        multiply(block);
        for (int p = 0; p < panels; ++p) {
          for (int i = 0; i < count * 16; ++i) {
            const int r = i / 16, n = i % 16, zero = scaled && integers ? zeros[p][n] : 0;
            int64_t dot = 0;
            for (int64_t c = 0; c < cols; ++c)
              dot += (rows[r * cols + c] + (parts ? rows[(r + 2) * cols + c] : 0)) *
                     (weights[p][n * cols + c] - zero);
            const float scale = scaled ? x_scales[r] * w_scales[p][n] : 1;
            ASSERT_EQ(sums[p][i], before + scale * static_cast<float>(dot))
                << count << " rows, row " << r << " column " << n;
          }
          ASSERT_EQ(sums[p][count * 16], 5.0f) << "nothing behind the last row";
        }
      }
    }
  }
}

// A few rows of codes: the bits that lines of int8 give.
class Int8Blocks : public LineBlocks {};

TEST_P(Int8Blocks, OfCodesAreThoseOfTheirLines) {
  const LineKernels& kernels = *GetParam().kernels;
  std::mt19937 random(3);
  constexpr int64_t kUnits = 3, kLines = 16 * kUnits, kStride = kLines * 4 + 64;
  Lines codes[2] = {Lines(kLines / 2), Lines(kLines / 2)},
        lines[2] = {Lines(kLines), Lines(kLines)};
  Lines x(kMaxBlockRows * kStride / 64);
  std::vector<int32_t> x_sums(kMaxBlockRows * kUnits);
  for (int r = 0; r < kMaxBlockRows; ++r) {
    for (int64_t c = 0; c < kLines * 4; ++c) {
      const int value = std::max(least_x_, static_cast<int>(random() % 256) - 128);
      x.data()[r * kStride + c] = static_cast<std::byte>(value);
      x_sums[r * kUnits + c / 64] += static_cast<int8_t>(x.data()[r * kStride + c]);
    }
  }
  float scales[2][kUnits * 16];
  int8_t zeros[2][kUnits * 16];
  for (int i = 0; i < 2 * kUnits * 16; ++i) {
    scales[i / (kUnits * 16)][i % (kUnits * 16)] = static_cast<float>(random() % 100) / 64;
    zeros[i / (kUnits * 16)][i % (kUnits * 16)] = static_cast<int8_t>(random());
  }
  for (bool fp4 : {false, true}) {
    for (int p = 0; p < 2; ++p) {
      for (int64_t i = 0; i < kLines * 32; ++i)
        codes[p].data()[i] = static_cast<std::byte>(random());
      const LineCodes c{.codes = codes[p].data(), .lines = kLines / 2, .to = lines[p].data()};
      fp4 ? kernels.decoders->e2m1_to_int8(c) : kernels.decoders->i4_to_int8(c);
    }
    for (int rows = 1; rows <= GetParam().kernels->code_block; ++rows) {
      for (int panels = 1; panels <= 2; ++panels) {
        std::vector<float> sums[2][2];
        for (bool from_codes : {false, true}) {
          LineBlock b{.x = x.data(), .x_stride = kStride, .rows = rows, .panels = panels};
          b.units = kUnits;
          b.unit_lines = from_codes ? 8 : 16;
          b.overwrite = true;
          b.x_sum = x_sums.data();
          b.x_sum_stride = kUnits;
          for (int p = 0; p < panels; ++p) {
            sums[from_codes][p].assign(rows * 16, 1.0f);
            b.sum[p] = sums[from_codes][p].data();
            b.lines[p] = from_codes ? codes[p].data() : lines[p].data();
            b.w_scale[p] = scales[p];
            b.w_zero[p] = rows % 2 == 0 ? zeros[p] : nullptr;
          }
          if (!from_codes)
            multiply(b);
          else
            fp4 ? kernels.codes->int8_by_e2m1(b) : kernels.codes->int8_by_i4(b);
        }
        for (int p = 0; p < panels; ++p) EXPECT_EQ(sums[1][p], sums[0][p]) << rows << " rows";
      }
    }
  }
}

// A few rows of f32 times codes of every kind, against sums in double: groups, zero points, scales,
// the codes of e4m3 that are no normal numbers.
TEST_P(LineBlocks, OfFloatsMeetCodesAsTheyLie) {
  const CodeKernels& kernels = *GetParam().kernels->codes;
  const struct {
    DType dtype;
    void (*multiply)(const LineBlock&);
    int bits;
    double (*value)(int code);
  } kinds[] = {
      {DType::kI4, kernels.f32_by_i4, 4, [](int c) { return double{c < 8 ? c : c - 16.0}; }},
      {DType::kI8, kernels.f32_by_i8, 8, [](int c) { return double{c < 128 ? c : c - 256.0}; }},
      {DType::kF8E4M3, kernels.f32_by_e4m3, 8,
       [](int c) { return double{e4m3_to_float(static_cast<uint8_t>(c))}; }},
      {DType::kF4E2M1, kernels.f32_by_e2m1, 4,
       [](int c) { return double{e2m1_to_float(static_cast<uint8_t>(c))}; }},
  };
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  constexpr int64_t kUnits = 3, kUnitCols = 48, kCols = kUnits * kUnitCols,
                    kStride = kCols * 4 + 64;
  const int most_rows = GetParam().kernels->code_block;
  Lines x(most_rows * kStride / 64 + 1);
  auto x_at = [&](int r, int64_t c) -> float& {
    return *reinterpret_cast<float*>(x.data() + r * kStride + c * 4);
  };
  for (int r = 0; r < most_rows; ++r) {
    for (int64_t c = 0; c < kCols; ++c) x_at(r, c) = normal(random);
  }
  for (const auto& kind : kinds) {
    const bool integer = kind.dtype == DType::kI4 || kind.dtype == DType::kI8;
    const int64_t line_cols = 32 / kind.bits, lines = kCols / line_cols;
    Lines codes[2] = {Lines(lines), Lines(lines)};
    float w_scale[2][kUnits * 16];
    int8_t zero[2][kUnits * 16];
    for (int p = 0; p < 2; ++p) {
      for (int64_t i = 0; i < lines * kLineBytes; ++i) {
        auto byte = static_cast<uint8_t>(random());
        if (kind.dtype == DType::kF8E4M3 && (byte & 0x7f) == 0x7f) byte = 5;
        codes[p].data()[i] = static_cast<std::byte>(byte);
      }
      for (int i = 0; i < kUnits * 16; ++i) {
        w_scale[p][i] = static_cast<float>(random() % 100) / 64;
        zero[p][i] = static_cast<int8_t>(random() % 16);
      }
    }
    auto value = [&](int p, int n, int64_t c) {
      const int64_t at = c / line_cols * kLineBytes + 4 * n + c % 4;
      const auto byte = static_cast<int>(codes[p].data()[at]);
      return kind.value(kind.bits == 8 ? byte : c % 8 < 4 ? byte & 15 : byte >> 4);
    };
    for (int rows = 1; rows <= most_rows; ++rows) {
      for (int panels = 1; panels <= 2; ++panels) {
        const bool zeros = integer && rows % 2 == 0, x_scaled = rows > 2;
        const float x_scales[] = {1, 2, 3, 0.5, 0.25, 4, 5, 6, 7, 1, 2, 3, 4, 0.5, 1, 8, 3, 2};
        ASSERT_GE(std::size(x_scales), static_cast<size_t>(most_rows * kUnits));
        LineBlock b;
        b.x = x.data();
        b.x_stride = kStride;
        b.rows = rows;
        b.panels = panels;
        b.units = kUnits;
        b.unit_lines = kUnitCols / line_cols;
        b.overwrite = panels == 1;
        if (x_scaled) {
          b.x_scale = x_scales;
          b.x_scale_stride = kUnits;
          b.x_scale_unit = 1;
        }
        std::vector<float> sums[2];
        for (int p = 0; p < panels; ++p) {
          sums[p].assign(rows * 16, 1.0f);
          b.sum[p] = sums[p].data();
          b.lines[p] = codes[p].data();
          b.w_scale[p] = w_scale[p];
          b.w_zero[p] = zeros ? zero[p] : nullptr;
        }
        kind.multiply(b);
        for (int p = 0; p < panels; ++p) {
          for (int i = 0; i < rows * 16; ++i) {
            const int r = i / 16, n = i % 16;
            double sum = b.overwrite ? 0 : 1, size = 1;
            for (int64_t c = 0; c < kCols; ++c) {
              const int64_t u = c / kUnitCols;
              const double w = value(p, n, c) - (zeros ? zero[p][u * 16 + n] : 0);
              const double product = w * x_at(r, c) * static_cast<double>(w_scale[p][u * 16 + n]) *
                                     (x_scaled ? x_scales[r * kUnits + u] : 1.0f);
              sum += product;
              size += std::abs(product);
            }
            ASSERT_NEAR(sums[p][i], sum, size * kCols * 0x1p-24) << name(kind.dtype) << " " << i;
          }
        }
      }
    }
  }
}

// NaN is a code like any other.
TEST_P(LineBlocks, OfFloatsKeepTheNanOfACode) {
  Lines codes(1), x(1);
  const float one = 1;
  for (int c = 0; c < 4; ++c) std::memcpy(x.data() + 4 * c, &one, sizeof one);
  for (int i = 0; i < 64; ++i) codes.data()[i] = static_cast<std::byte>(i == 4 * 3 + 1 ? 0xff : 8);
  float sums[16];
  LineBlock b;
  b.x = x.data();
  b.rows = 1;
  b.panels = 1;
  b.unit_lines = 1;
  b.overwrite = true;
  b.lines[0] = codes.data();
  b.sum[0] = sums;
  GetParam().kernels->codes->f32_by_e4m3(b);
  for (int n = 0; n < 16; ++n) EXPECT_EQ(std::isnan(sums[n]), n == 3) << n;
}

TEST_P(LineBlocks, FinishWithScalesBiasWeightsAndRowsOfOthers) {
  const LineKernels& kernels = *GetParam().kernels;
  std::vector<float> sum(3 * 16), to(4 * 20, 1.0f);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<float>(i);
  const float x_scale[] = {1, 2, 4}, weight[] = {1, 2, 3};
  float w_scale[16], bias[16];
  for (int n = 0; n < 16; ++n) w_scale[n] = static_cast<float>(n % 2 + 1), bias[n] = 0.5f;
  const int32_t to_row[] = {3, 0, 3};
  LineResult f{.sum = sum.data(), .rows = 3, .x_scale = x_scale, .x_scale_stride = 1};
  f.w_scale = w_scale;
  f.bias = bias;
  f.to = to.data();
  f.to_stride = 20;
  f.columns = 13;
  kernels.finish(f);
  auto value = [&](int r, int n) { return sum[r * 16 + n] * x_scale[r] * w_scale[n] + 0.5f; };
  for (int r = 0; r < 4; ++r) {
    for (int n = 0; n < 20; ++n)
      ASSERT_EQ(to[r * 20 + n], r < 3 && n < 13 ? value(r, n) : 1.0f) << r << " " << n;
  }
  std::fill(to.begin(), to.end(), 1.0f);
  f.add = true;
  f.weight = weight;
  f.to_row = to_row;
  kernels.finish(f);
  for (int n = 0; n < 13; ++n) {
    EXPECT_EQ(to[3 * 20 + n], 1 + value(0, n) + 3 * value(2, n));
    EXPECT_EQ(to[n], 1 + 2 * value(1, n));
    EXPECT_EQ(to[20 + n], 1.0f);
  }
}

// Nothing saturates: every code times every code, four times in a sum.
TEST_P(Int8Blocks, OfEveryPairOfCodesAreExact) {
  Lines w(16), x(kMaxBlockRows);
  std::vector<float> sums(kMaxBlockRows * 16);
  std::vector<int32_t> x_sums(kMaxBlockRows);
  for (int first_w = -128; first_w < 128; first_w += 16) {
    for (int line = 0; line < 16; ++line) {
      for (int i = 0; i < 64; ++i)
        w.data()[line * 64 + i] = static_cast<std::byte>(first_w + i / 4);
    }
    for (int first_x = -128; first_x < 128; first_x += kMaxBlockRows) {
      for (int r = 0; r < kMaxBlockRows; ++r) {
        const int value = std::max(first_x + r, least_x_);
        std::memset(x.data() + r * 64, value, 64);
        x_sums[r] = 64 * value;
      }
      LineBlock b{.x = x.data(), .x_stride = 64, .rows = kMaxBlockRows, .panels = 1};
      b.unit_lines = 16;
      b.overwrite = true;
      b.lines[0] = w.data();
      b.sum[0] = sums.data();
      b.x_sum = x_sums.data();
      b.x_sum_stride = 1;
      multiply(b);
      for (int r = 0; r < kMaxBlockRows; ++r) {
        const int value = std::max(first_x + r, least_x_);
        for (int n = 0; n < 16; ++n)
          ASSERT_EQ(sums[r * 16 + n], static_cast<float>(64 * value * (first_w + n)));
      }
    }
  }
}

// One result whatever multiplies, and whatever the number of rows in a call.
TEST(LineKernels, OfEveryInstructionSetGiveTheSameBitsOfIntegersAndOfF32) {
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  constexpr int64_t kUnits = 3, kLines = 16 * kUnits, kStride = kLines * 4 + 64;
  for (const Arithmetic arithmetic : {Arithmetic::kInt8, Arithmetic::kF32}) {
    const bool integers = arithmetic == Arithmetic::kInt8;
    Lines w[2] = {Lines(kLines), Lines(kLines)}, x(kMaxBlockRows * kStride / 64);
    std::vector<int32_t> x_sums(kMaxBlockRows * kUnits);
    for (int r = 0; r < kMaxBlockRows; ++r) {
      for (int64_t i = 0; i < kLines; ++i) {
        const float value = normal(random);
        std::memcpy(x.data() + r * kStride + i * 4, &value, sizeof value);
        for (int c = 0; integers && c < 4; ++c) {
          const int code = static_cast<int>(random() % 255) - 127;
          x.data()[r * kStride + i * 4 + c] = static_cast<std::byte>(code);
          x_sums[r * kUnits + i / 16] += code;
        }
      }
    }
    float scales[2][kUnits * 16], x_scales[kMaxBlockRows * kUnits];
    int8_t zeros[2][kUnits * 16];
    for (float& scale : x_scales) scale = std::abs(normal(random));
    for (int p = 0; p < 2; ++p) {
      for (float& scale : scales[p]) scale = std::abs(normal(random));
      for (int8_t& zero : zeros[p]) zero = static_cast<int8_t>(random());
      for (int64_t i = 0; i < kLines * 16; ++i) {
        const float value = normal(random);
        const auto codes = static_cast<uint32_t>(random());
        std::memcpy(w[p].data() + 4 * i, integers ? static_cast<const void*>(&codes) : &value, 4);
      }
    }
    auto result = [&](const LineKernels& k, int rows, int panels, bool with_zeros) {
      std::vector<float> sums(2 * kMaxBlockRows * 16, 0.5f);
      if (k.begin != nullptr) k.begin();
      for (int row = 0; row < kMaxBlockRows; row += rows) {
        LineBlock b{.x = x.data() + row * kStride, .x_stride = kStride};
        b.rows = std::min(rows, kMaxBlockRows - row);
        b.panels = panels;
        b.units = kUnits;
        b.unit_lines = 16;
        b.x_scale = x_scales + row * kUnits;
        b.x_scale_stride = kUnits;
        b.x_scale_unit = 1;
        b.x_sum = x_sums.data() + row * kUnits;
        b.x_sum_stride = kUnits;
        for (int p = 0; p < panels; ++p) {
          b.sum[p] = sums.data() + (p * kMaxBlockRows + row) * 16;
          b.lines[p] = w[p].data();
          b.w_scale[p] = scales[p];
          b.w_zero[p] = with_zeros && integers ? zeros[p] : nullptr;
        }
        (integers ? k.int8 : k.f32)(b);
      }
      if (k.end != nullptr) k.end();
      return sums;
    };
    for (const bool with_zeros : {false, true}) {
      std::optional<std::vector<float>> first[2];
      for (const KernelCase& c : kCases) {
        if (c.arithmetic != arithmetic || !has(c.needs)) continue;
        for (int panels = 1; panels <= 2; ++panels) {
          for (const int rows : {1, 2, 3, 4, 5, 6, 7, 9, 17, 32}) {
            const std::vector<float> got = result(*c.kernels, rows, panels, with_zeros);
            std::optional<std::vector<float>>& want = first[panels - 1];
            if (!want) want = got;
            ASSERT_EQ(got, *want) << c.name << ", " << rows << " rows at once";
          }
        }
      }
    }
  }
}

std::vector<KernelCase> int8_cases() {
  std::vector<KernelCase> cases;
  for (const KernelCase& c : kCases) {
    if (c.arithmetic == Arithmetic::kInt8) cases.push_back(c);
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Isa, Int8Blocks, ::testing::ValuesIn(int8_cases()),
                         [](const auto& param) { return param.param.name; });
INSTANTIATE_TEST_SUITE_P(Isa, LineBlocks, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace moracle::cpu

#endif
