// Tests unpack kernels on all codes and exponents, and the conversion of activation rows for a
// kernel.
#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "kernels/ukernel_cases.h"

#if defined(__x86_64__)

namespace moracle::cpu::unpack_test {
namespace {

float bf16_at(RowBlocks& row_blocks, int64_t i) {
  return bf16_to_float(row_blocks.at<uint16_t>(i));
}

// The order of each eight columns in unpacked bf16, and the position of one column.
constexpr int kUnpacked[8] = {0, 2, 1, 3, 4, 6, 5, 7};
int64_t index_of(int64_t column, ColumnOrder order) {
  if (order == ColumnOrder::kPlain) return column;
  return column / 8 * 8 + std::find(kUnpacked, kUnpacked + 8, column % 8) - kUnpacked;
}

// Unpacking of codes and packing of activation rows.
class Unpacking : public ::testing::TestWithParam<KernelCase> {
 protected:
  void SetUp() override {
    if (!has(GetParam().needs)) GTEST_SKIP() << "needs " << names(GetParam().needs);
  }
  void unpack(DType from, Operand to, const UnpackBlocksArgs& args) const {
    kernels_.unpack(from, to)->fn(args);
  }
  void pack(DType from, Operand to, const PackArgs& args) const {
    kernels_.pack(from, to)->fn(args);
  }
  const UkernelSet& kernels_ = *GetParam().kernels;
};
class UnpackingToBf16 : public Unpacking {};
class UnpackingToF32 : public Unpacking {};
const KernelCase kAvx2Case = {&ukernels(DotIsa::kAvx2), Operand::kF32, Isa::kAvx2, "avx2"};
const KernelCase kAvx512Case = {&ukernels(DotIsa::kAvx512), Operand::kF32, kVnni, "avx512"};

// One code byte per row and column: every code appears at every position of a row block.
TEST_P(UnpackingToBf16, UnpacksEveryByte) {
  for (int shift = 0; shift < 256; ++shift) {
    RowBlocks codes(1), wide(2);
    for (int i = 0; i < 64; ++i) codes.data()[i] = static_cast<std::byte>(i + shift);
    const UnpackBlocksArgs c{.codes = codes.data(), .blocks = 1, .to = wide.data()};
    // Row r's columns 0 to 3 are bytes 4r to 4r + 3; two columns of each row make a row block of
    // bf16.
    auto index = [&](int r, int column) {
      return index_of(column, kernels_.order) / 2 * 32 + 2 * r +
             index_of(column, kernels_.order) % 2;
    };
    unpack(DType::kI8, Operand::kBf16, c);
    for (int i = 0; i < 64; ++i)
      ASSERT_EQ(bf16_at(wide, index(i / 4, i % 4)), static_cast<int8_t>(i + shift));
    unpack(DType::kF8E4M3, Operand::kBf16, c);
    for (int i = 0; i < 64; ++i) {
      const float want = e4m3_to_float(static_cast<uint8_t>(i + shift));
      const float got = bf16_at(wide, index(i / 4, i % 4));
      ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << got << " " << want;
      ASSERT_EQ(std::signbit(got), std::signbit(want));
    }
  }
}

// Row blocks of normal numbers take another code path than row blocks with zeros.
TEST_P(UnpackingToBf16, UnpacksNormalNumbersTimesPowerOfTwo) {
  for (int first = 8; first < 0x7f; ++first) {
    RowBlocks codes(1), wide(2);
    for (int i = 0; i < 64; ++i)
      codes.data()[i] = static_cast<std::byte>((8 + (first - 8 + i) % 0x77) | (i % 2 * 0x80));
    for (int power : {0, 1, 17, 126, 127, 128, 237, 238}) {
      const auto exponent = static_cast<uint8_t>(power);
      UnpackBlocksArgs c{.codes = codes.data(), .blocks = 1, .to = wide.data()};
      c.exponent = &exponent;
      c.exponent_lanes = 1;
      unpack(DType::kF8E4M3, Operand::kBf16, c);
      for (int i = 0; i < 64; ++i) {
        const int64_t at = index_of(i % 4, kernels_.order) / 2 * 32 + 2 * (i / 4) +
                           index_of(i % 4, kernels_.order) % 2;
        const float want =
            std::ldexp(e4m3_to_float(static_cast<uint8_t>(codes.data()[i])), power - 127);
        ASSERT_EQ(bf16_at(wide, at), std::fabs(want) < 0x1p-126f ? 0 : want) << power;
      }
    }
  }
}

TEST_P(UnpackingToBf16, UnpacksEveryNibblePair) {
  for (int shift = 0; shift < 256; shift += 64) {
    RowBlocks codes(1), wide(4), bytes(2);
    for (int i = 0; i < 64; ++i) codes.data()[i] = static_cast<std::byte>(i + shift);
    UnpackBlocksArgs c{.codes = codes.data(), .blocks = 1, .to = wide.data()};
    auto nibble = [&](int r, int column) {
      return (4 * r + column % 4 + shift) >> (column / 4 * 4) & 15;
    };
    auto each = [&](auto check) {
      for (int r = 0; r < 16; ++r) {
        for (int column = 0; column < 8; ++column) check(r, column);
      }
    };
    auto index = [&](int r, int column) {
      return index_of(column, kernels_.order) / 2 * 32 + 2 * r +
             index_of(column, kernels_.order) % 2;
    };
    auto integer = [&](int r, int column) { return (nibble(r, column) ^ 8) - 8; };
    unpack(DType::kI4, Operand::kBf16, c);
    each(
        [&](int r, int column) { ASSERT_EQ(bf16_at(wide, index(r, column)), integer(r, column)); });
    int8_t zeros[16];
    for (int r = 0; r < 16; ++r) zeros[r] = static_cast<int8_t>(r - 8);
    c.zero = zeros;
    unpack(DType::kI4, Operand::kBf16, c);
    each([&](int r, int column) {
      ASSERT_EQ(bf16_at(wide, index(r, column)), integer(r, column) - zeros[r]);
    });
    c.zero = nullptr;
    uint8_t exponents[16];
    for (int r = 0; r < 16; ++r) exponents[r] = static_cast<uint8_t>(120 + r);
    c.exponent = exponents;
    unpack(DType::kF4E2M1, Operand::kBf16, c);
    each([&](int r, int column) {
      const float value = e2m1_to_float(static_cast<uint8_t>(nibble(r, column)));
      ASSERT_EQ(bf16_at(wide, index(r, column)), std::ldexp(value, r - 7));
    });
    c.exponent = nullptr;
    c.to = bytes.data();
    unpack(DType::kI4, Operand::kInt8, c);
    auto byte_index = [](int r, int column) { return column / 4 * 64 + 4 * r + column % 4; };
    each([&](int r, int column) {
      ASSERT_EQ(bytes.at<int8_t>(byte_index(r, column)), integer(r, column));
    });
    unpack(DType::kF4E2M1, Operand::kInt8, c);
    each([&](int r, int column) {
      ASSERT_EQ(bytes.at<int8_t>(byte_index(r, column)),
                2 * e2m1_to_float(static_cast<uint8_t>(nibble(r, column))));
    });
  }
}

TEST_P(UnpackingToBf16, PowersOfTwoBelowBf16RangeBecomeZero) {
  RowBlocks codes(1), wide(2);
  std::memset(codes.data(), 1, 64);  // 2^-9
  uint8_t exponents[16] = {};        // 2^-127
  exponents[1] = 9 + 127 - 126;      // the smallest normal number
  unpack(DType::kF8E4M3, Operand::kBf16,
         {.codes = codes.data(), .blocks = 1, .to = wide.data(), .exponent = exponents});
  EXPECT_EQ(bf16_at(wide, 0), 0.0f);
  EXPECT_EQ(bf16_at(wide, 2), std::ldexp(1.0f, -126));
  // NaN codes unpack to NaN.
  std::memset(codes.data(), 0x7f, 64);
  for (int r = 0; r < 16; ++r) exponents[r] = static_cast<uint8_t>(17 * r);
  unpack(DType::kF8E4M3, Operand::kBf16,
         {.codes = codes.data(), .blocks = 1, .to = wide.data(), .exponent = exponents});
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(std::isnan(bf16_at(wide, i)));
  // One power for all fp4 rows: far and near.
  RowBlocks more(4);
  std::memset(codes.data(), 0x52, 64);  // 1 and 3
  for (int e : {1, 2, 100, 252, 253}) {
    const auto power = static_cast<uint8_t>(e);
    unpack(DType::kF4E2M1, Operand::kBf16,
           {.codes = codes.data(),
            .blocks = 1,
            .to = more.data(),
            .exponent = &power,
            .exponent_lanes = 1});
    for (int i = 0; i < 128; ++i)
      EXPECT_EQ(bf16_at(more, i), std::ldexp(i < 64 ? 1.0f : 3.0f, e - 127)) << e;
  }
}

TEST_P(UnpackingToBf16, ActivationRowsMatchScalarConversion) {
  std::mt19937 random(1);
  for (int64_t count : {0, 1, 15, 16, 17, 31, 32, 33, 100}) {
    std::vector<float> x(count);
    std::vector<uint8_t> codes(count);
    for (float& v : x) v = std::bit_cast<float>(static_cast<uint32_t>(random()));
    for (uint8_t& c : codes) c = static_cast<uint8_t>(random());
    const auto* integers = reinterpret_cast<const int8_t*>(codes.data());
    for (ColumnOrder order : {ColumnOrder::kPlain, ColumnOrder::kUnpacked}) {
      const bool plain = order == ColumnOrder::kPlain;
      const int64_t stored = plain ? count : (count + 7) / 8 * 8;
      std::vector<uint16_t> to(stored + 1, 0xabcd), rest(stored + 1, 0xabcd);
      auto* bytes = reinterpret_cast<std::byte*>(to.data());
      auto index = [&](int64_t i) { return index_of(i, order); };
      pack(DType::kF32, Operand::kBf16,
           {x.data(), count, bytes, order, reinterpret_cast<std::byte*>(rest.data())});
      for (int64_t i = 0; i < count; ++i) {
        const float got = bf16_to_float(to[index(i)]), want = bf16_to_float(float_to_bf16(x[i]));
        EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << x[i];
        if (std::isfinite(got) && std::fabs(x[i]) > 1e-30f) {
          EXPECT_LE(std::fabs(x[i] - got - bf16_to_float(rest[index(i)])),
                    0x1p-16f * std::fabs(x[i]));
        }
      }
      for (int64_t i = count; i < stored; ++i) EXPECT_EQ(to[index(i)] | rest[index(i)], 0);
      EXPECT_EQ(rest[stored], 0xabcd);
      pack(DType::kF8E4M3, Operand::kBf16, {codes.data(), count, bytes, order});
      for (int64_t i = 0; i < count; ++i) {
        const float got = bf16_to_float(to[index(i)]), want = e4m3_to_float(codes[i]);
        EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want)));
      }
      pack(DType::kI8, Operand::kBf16, {integers, count, bytes, order});
      for (int64_t i = 0; i < count; ++i) EXPECT_EQ(bf16_to_float(to[index(i)]), integers[i]);
      EXPECT_EQ(to[stored], 0xabcd);
    }
  }
}

TEST_P(Unpacking, FloatsAreSumsOfInt8Limbs) {
  constexpr int64_t kRun = 64, kStride = 256;
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const int64_t count : {64, 128, 200}) {
    const int64_t runs = (count + kRun - 1) / kRun;
    for (const float size : {0.0f, 1e-38f, 1e-6f, 1.0f, 1e30f}) {
      std::vector<float> x(count);
      for (float& v : x) v = size * normal(random);
      std::vector<int8_t> codes(kLimbs * kStride);
      std::vector<int32_t> sums(kLimbs * runs);
      std::vector<float> scales(kLimbs * runs);
      pack(DType::kF32, Operand::kInt8,
           {.from = x.data(),
            .count = count,
            .to = reinterpret_cast<std::byte*>(codes.data()),
            .segment = kRun,
            .sums = sums.data(),
            .scales = scales.data(),
            .segments = runs,
            .limb_stride = kStride});
      for (int64_t r = 0; r < runs; ++r) {
        const int64_t end = std::min(count, (r + 1) * kRun);
        double largest = 0;
        for (int64_t i = r * kRun; i < end; ++i)
          largest = std::max(largest, std::fabs(double{x[i]}));
        std::vector<int32_t> want(kLimbs);
        for (int64_t i = r * kRun; i < end; ++i) {
          double value = 0;
          for (int p = 0; p < kLimbs; ++p) {
            const int code = codes[p * kStride + i];
            ASSERT_LE(std::abs(code), 127);
            want[p] += code;
            value += double{scales[p * runs + r]} * code;
          }
          // Half a step of 2^-23, and the rounding of the product and of three scales.
          ASSERT_LE(std::fabs(value - x[i]), 0x1p-22 * largest + 1e-37) << x[i];
        }
        for (int p = 0; p < kLimbs; ++p) EXPECT_EQ(sums[p * runs + r], want[p]);
      }
    }
  }
  std::vector<float> x(2 * kRun, 1.0f), scales(kLimbs * 2);
  std::vector<int8_t> codes(kLimbs * kStride);
  std::vector<int32_t> sums(kLimbs * 2);
  x[3] = INFINITY;
  pack(DType::kF32, Operand::kInt8,
       {.from = x.data(),
        .count = 2 * kRun,
        .to = reinterpret_cast<std::byte*>(codes.data()),
        .segment = kRun,
        .sums = sums.data(),
        .scales = scales.data(),
        .segments = 2,
        .limb_stride = kStride});
  for (int p = 0; p < kLimbs; ++p) {
    EXPECT_TRUE(std::isnan(scales[2 * p]));
    EXPECT_FALSE(std::isnan(scales[2 * p + 1]));
  }
}

// Every code at every index of a row block, with zero points, exponents or scales, against the
// value in double, rounded once.
TEST_P(UnpackingToF32, GivesScaledValueOfEveryCode) {
  int8_t zeros[16];
  uint8_t exponents[16];
  float scales[16];
  for (int r = 0; r < 16; ++r) {
    zeros[r] = static_cast<int8_t>(r - 8);
    exponents[r] = static_cast<uint8_t>(110 + 2 * r);
    scales[r] = 0.3f * static_cast<float>(r + 1);
  }
  const struct {
    void (*unpack)(const UnpackBlocksArgs&);
    int bits;
    bool integers;
    double (*value)(uint8_t code);
  } kinds[] = {{kernels_.unpack(DType::kI4, Operand::kF32)->fn, 4, true,
                [](uint8_t c) { return double((c ^ 8) - 8); }},
               {kernels_.unpack(DType::kI8, Operand::kF32)->fn, 8, true,
                [](uint8_t c) { return static_cast<double>(static_cast<int8_t>(c)); }},
               {kernels_.unpack(DType::kF8E4M3, Operand::kF32)->fn, 8, false,
                [](uint8_t c) { return double{e4m3_to_float(c)}; }},
               {kernels_.unpack(DType::kF4E2M1, Operand::kF32)->fn, 4, false,
                [](uint8_t c) { return double{e2m1_to_float(c)}; }}};
  for (const auto& kind : kinds) {
    for (int shift = 0; shift < 256; ++shift) {
      RowBlocks codes(2), made(16);
      for (int i = 0; i < 2 * kRowBlockBytes; ++i)
        codes.data()[i] = static_cast<std::byte>(i * 3 + shift);
      for (const bool scaled : {false, true}) {
        UnpackBlocksArgs c{.codes = codes.data(), .blocks = 2, .to = made.data()};
        if (kind.integers && scaled) c.zero = zeros;
        if (!kind.integers && !scaled) c.exponent = exponents;
        if (scaled) c.scale = scales;
        kind.unpack(c);
        const int columns = 32 / kind.bits;
        for (int i = 0; i < 2 * columns * 16; ++i) {
          const int column = i / 16, r = i % 16, in = column % columns;
          const auto byte = codes.at<uint8_t>(column / columns * kRowBlockBytes + 4 * r + in % 4);
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

INSTANTIATE_TEST_SUITE_P(Isa, UnpackingToF32,
                         ::testing::Values(KernelCase{&ukernels(DotIsa::kPortable), Operand::kF32,
                                                      Isa::kNone, "portable"},
                                           kAvx2Case, kAvx512Case),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Isa, UnpackingToBf16, ::testing::Values(kAvx512Case), case_name);
INSTANTIATE_TEST_SUITE_P(Isa, Unpacking, ::testing::Values(kAvx2Case, kAvx512Case), case_name);

// Compares every unpack kernel bit for bit on codes, exponents and zero points of every kind.
TEST(UnpackKernels, BothInstructionSetsGiveSameRowBlocks) {
  if (!has(kVnni | Isa::kAvx2)) GTEST_SKIP() << "needs both";
  const UkernelSet* const sets[] = {&ukernels(DotIsa::kAvx2), &ukernels(DotIsa::kAvx512)};
  std::mt19937 random(11);
  constexpr int64_t kBlocks = 12, kGroup = 4, kGroups = kBlocks / kGroup;
  RowBlocks codes(kBlocks), made[2] = {RowBlocks(8 * kBlocks), RowBlocks(8 * kBlocks)};
  int8_t zeros[kGroups * 16];
  uint8_t exponents[kGroups * 16];
  float scales[16];
  for (int round = 0; round < 64; ++round) {
    const int middle = round % 2 == 0 ? 127 : static_cast<int>(random() % 256);
    for (int64_t i = 0; i < kBlocks * kRowBlockBytes; ++i)
      codes.data()[i] = static_cast<std::byte>(random());
    for (int8_t& z : zeros) z = static_cast<int8_t>(random());
    for (uint8_t& e : exponents)
      e = static_cast<uint8_t>(round % 4 < 2 ? middle + static_cast<int>(random() % 16) - 8
                                             : random());
    for (float& s : scales)
      s = std::bit_cast<float>(0x3f800000u + (static_cast<uint32_t>(random()) >> 9));
    auto compare = [&](DType from, Operand to, int64_t to_lines, const UnpackBlocksArgs& like) {
      for (int i = 0; i < 2; ++i) {
        std::memset(made[i].data(), 0x5a, 8 * kBlocks * kRowBlockBytes);
        UnpackBlocksArgs c = like;
        c.codes = codes.data();
        c.blocks = kBlocks;
        c.to = made[i].data();
        sets[i]->unpack(from, to)->fn(c);
      }
      for (int64_t i = 0; i < 8 * kBlocks * kRowBlockBytes / 4; ++i) {
        const bool nan = std::isnan(made[0].at<float>(i)) && std::isnan(made[1].at<float>(i));
        ASSERT_TRUE((to == Operand::kF32 && nan) ||
                    made[0].at<uint32_t>(i) == made[1].at<uint32_t>(i))
            << "round " << round << ", dword " << i;
      }
      if (to_lines < 8) {
        ASSERT_EQ(made[0].at<uint8_t>(to_lines * kBlocks * kRowBlockBytes), 0x5a);
      }
    };
    UnpackBlocksArgs plain, integers, powers, one_power, scaled;
    integers.zero = zeros;
    powers.exponent = one_power.exponent = exponents;
    one_power.exponent_lanes = 1;
    scaled.scale = scales;
    integers.group_blocks = powers.group_blocks = one_power.group_blocks = kGroup;
    compare(DType::kI4, Operand::kInt8, 2, plain);
    compare(DType::kF4E2M1, Operand::kInt8, 2, plain);
    // bf16 columns may have another order; f32 columns may not. f32 is unpacked group by group.
    integers.group_blocks = powers.group_blocks = one_power.group_blocks = 0;
    for (const UnpackBlocksArgs& c : {plain, integers, scaled}) {
      compare(DType::kI4, Operand::kF32, 8, c);
      compare(DType::kI8, Operand::kF32, 4, c);
    }
    for (const UnpackBlocksArgs& c : {plain, powers, one_power, scaled}) {
      compare(DType::kF8E4M3, Operand::kF32, 4, c);
      compare(DType::kF4E2M1, Operand::kF32, 8, c);
    }
  }
}

}  // namespace
}  // namespace moracle::cpu::unpack_test

#endif
