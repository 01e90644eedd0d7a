// Compares every function of every table with the scalar reference. Bits must be equal where the
// table guarantees that; otherwise the bound is in units in the last place.
#include "kernels/cpu/simd/vector_ops.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/scalar.h"
#include "kernels/isa_here.h"
#include "moracle/checkpoint.h"
#include "quant/activation.h"
#include "support/floats.h"

namespace moracle::cpu::vector_ops_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr int64_t kCounts[] = {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 257};
const float kSpecial[] = {0,     -0.0f, 1e-45f, -1e-45f, 1e-38f, -1e-39f, 1,
                          -1,    448,   449,    464.1f,  kMax,   -kMax,   kInf,
                          -kInf, NAN,   -NAN,   6e4f,    65520,  1e-7f};

struct Table {
  const VectorOps* ops;
  Isa needs;
};
const Table kTables[] = {
    {&kPortableVectorOps, Isa::kNone},
#if defined(__x86_64__)
    {&kAvx2VectorOps, Isa::kAvx2},
    {&kAvx512VectorOps, Isa::kAvx512 | Isa::kAvx2},
#endif
};

class VectorOpsTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const Isa needs = kTables[GetParam()].needs;
    if (!has(needs)) GTEST_SKIP() << "needs " << names(needs);
  }
  std::vector<float> normal(int64_t count, float size = 1) {
    return testing::normal_floats(random_, count, size);
  }
  /// Random bits.
  std::vector<float> anything(int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = std::bit_cast<float>(static_cast<uint32_t>(random_()));
    return values;
  }
  const VectorOps& ops_ = *kTables[GetParam()].ops;
  std::mt19937 random_{7};
};

/// Distance in units in the last place of `want`. Below 2^-126 the unit stays that of 2^-126.
double ulps(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : INFINITY;
  const auto rounded = static_cast<float>(want);
  if (got == rounded) return 0;
  if (!std::isfinite(got) || !std::isfinite(rounded)) return INFINITY;
  const int exponent = std::max(std::ilogb(want == 0 ? 0x1p-149 : want), -126);
  return std::fabs(got - want) / std::ldexp(1.0, exponent - 23);
}

std::vector<float> activated(const VectorOps& ops, const ActivationSpec& spec,
                             const std::vector<float>& gate, const std::vector<float>& up) {
  std::vector<float> out(up.size() + 1, 77);
  ops.activate(spec, gate.data(), up.data(), static_cast<int64_t>(up.size()), out.data());
  EXPECT_EQ(out.back(), 77) << "one past the end";
  out.pop_back();
  return out;
}

/// Compares bits, but any NaN equals any NaN: the compiler chooses which operand's NaN is returned.
void expect_same(const std::vector<float>& a, const float* b, const std::string& what) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i])) << what << ", " << i;
  }
}

std::vector<float> steps(float from, float to, int count) {
  std::vector<float> values;
  for (int i = 0; i <= count; ++i)
    values.push_back(from + (to - from) * static_cast<float>(i) / static_cast<float>(count));
  return values;
}

// σ has an exponential, a sum and a quotient; x σ(x) a rounding of each.
TEST_P(VectorOpsTest, SiluIsWithinThreeUnitsInTheLastPlace) {
  const std::vector<float> x = steps(-87, 100, 100000);
  const std::vector<float> got = activated(ops_, {Activation::kSiluNoMul}, x, x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i)
    worst = std::max(worst, ulps(got[i], x[i] / (1 + std::exp(-double{x[i]}))));
  EXPECT_LE(worst, 3);
}

// Down to where Φ becomes subnormal.
TEST_P(VectorOpsTest, GeluIsWithinSevenUnitsInTheLastPlace) {
  std::vector<float> x = steps(-12.9f, 16, 100000);
  for (float v : steps(-1e-3f, 1e-3f, 1000)) x.push_back(v);
  for (float v : {1e-30f, -1e-30f, 0.0f, -20.0f, -1e30f, 1e30f, 1e-42f}) x.push_back(v);
  const std::vector<float> got = activated(ops_, {Activation::kGeluNoMul}, x, x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i)
    worst = std::max(worst, ulps(got[i], 0.5 * x[i] * std::erfc(x[i] * -std::sqrt(0.5))));
  EXPECT_LE(worst, 7);
}

TEST_P(VectorOpsTest, ExponentialsEndInZeroAndInfinity) {
  const std::vector<float> x = {-200, -100, -kInf, kInf, NAN, 88.7f, -88.7f, -103.9f};
  const std::vector<float> silu = activated(ops_, {Activation::kSiluNoMul}, x, x);
  EXPECT_EQ(silu[0], 0);
  EXPECT_NEAR(silu[1], 0, 0x1p-126);
  EXPECT_TRUE(std::isnan(silu[2])) << "-inf / inf, as the formula says";
  EXPECT_EQ(silu[3], kInf);
  EXPECT_TRUE(std::isnan(silu[4]));
  for (Activation gelu : {Activation::kGeluNoMul, Activation::kGeluTanhNoMul}) {
    const std::vector<float> y = activated(ops_, {gelu}, x, x);
    EXPECT_EQ(y[0], 0);
    EXPECT_EQ(y[3], kInf);
    EXPECT_TRUE(std::isnan(y[4]));
    EXPECT_EQ(y[5], x[5]);
  }
}

TEST_P(VectorOpsTest, ActivationDoesNotDependOnElementPosition) {
  const int64_t most = 257;
  std::vector<float> gate = normal(most, 4), up = normal(most, 4);
  std::copy(std::begin(kSpecial), std::end(kSpecial), gate.begin() + 40);
  for (int function = 0; function <= static_cast<int>(Activation::kRelu2NoMul); ++function) {
    const ActivationSpec spec{static_cast<Activation>(function), 1.702f, 1, 7};
    std::vector<float> alone(most);
    for (int64_t i = 0; i < most; ++i) alone[i] = activated(ops_, spec, {gate[i]}, {up[i]})[0];
    for (int64_t first : {0, 1, 13}) {
      for (int64_t count : kCounts) {
        if (first + count > most) continue;
        const std::vector<float> g(&gate[first], &gate[first] + count),
            u(&up[first], &up[first] + count), got = activated(ops_, spec, g, u);
        expect_same(got, &alone[first], std::string(name(spec.function)));
        std::vector<float> in_place = g;
        ops_.activate(spec, in_place.data(), u.data(), count, in_place.data());
        expect_same(in_place, got.data(), "in place");
      }
    }
  }
}

/// Rows of every length: ordinary, huge, tiny, all zeros, and with a non-finite value.
template <class Check>
void each_row(std::mt19937& random, const Check& check) {
  for (int64_t count : kCounts) {
    for (float size : {1.0f, 1e-12f, 1e30f, 3e-39f, 0.0f}) {
      std::normal_distribution<float> draw;
      std::vector<float> x(count);
      for (float& value : x) value = draw(random) * size;
      check(x);
      if (count == 0) continue;
      // Ties: multiples of half a step of the largest value.
      for (float& value : x) value = std::round(draw(random) * 40) * 0.5f;
      x[count / 2] = 127;
      check(x);
      for (float odd : {NAN, kInf, -kInf, kMax}) {
        std::vector<float> with = x;
        with[count - 1] = odd;
        check(with);
      }
    }
  }
}

TEST_P(VectorOpsTest, Int8CodesMatchReference) {
  each_row(random_, [&](const std::vector<float>& x) {
    const auto count = static_cast<int64_t>(x.size());
    std::vector<int8_t> want(count), got(count + 1, 99);
    const float scale = quantize_int8_token(x.data(), count, want.data());
    EXPECT_EQ(std::bit_cast<uint32_t>(ops_.quantize_int8(x.data(), count, got.data())),
              std::bit_cast<uint32_t>(scale));
    EXPECT_EQ(got.back(), 99);
    got.pop_back();
    EXPECT_EQ(got, want);
  });
}

TEST_P(VectorOpsTest, Fp8CodesAndScalesMatchReference) {
  each_row(random_, [&](const std::vector<float>& x) {
    const auto count = static_cast<int64_t>(x.size());
    for (const QuantKey& key : {kFp8DynamicTokenSym, fp8_dynamic_group(128), fp8_dynamic_group(8),
                                fp8_dynamic_group(7), kMxfp8Dynamic}) {
      const int64_t groups = num_groups(key, count);
      std::vector<uint8_t> want(count), got(count + 1, 99);
      std::vector<float> want_scales(groups), scales(groups + 1, 77);
      quantize_row(key, x.data(), count, want.data(), want_scales.data());
      ops_.quantize_e4m3(x.data(), count, group_cols(key, count), key == kMxfp8Dynamic, got.data(),
                         scales.data());
      EXPECT_EQ(got.back(), 99);
      EXPECT_EQ(scales.back(), 77);
      got.pop_back();
      EXPECT_EQ(got, want) << count << " in groups of " << group_cols(key, count);
      scales.pop_back();
      expect_same(scales, want_scales.data(), "scales");
    }
  });
}

TEST_P(VectorOpsTest, Fp8CodesWithGivenScaleMatchReference) {
  for (float scale : {1.0f, 0.37f, 1e-3f, 0x1p-127f}) {
    std::vector<float> x = anything(20001);
    for (float& v : normal(3000, 100 * scale)) x.push_back(v);
    x.insert(x.end(), std::begin(kSpecial), std::end(kSpecial));
    std::vector<uint8_t> got(x.size());
    ops_.encode_e4m3(x.data(), static_cast<int64_t>(x.size()), scale, got.data());
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_EQ(got[i], float_to_e4m3(x[i] / scale)) << x[i] << " / " << scale;
  }
}

TEST_P(VectorOpsTest, CodesDecodeToTheirValues) {
  uint8_t codes[256];
  for (int i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
  for (float scale : {1.0f, 0.37f}) {
    for (int count : {256, 255, 1}) {
      std::vector<float> e4m3(256, 5), int8(256, 5);
      ops_.dequantize_e4m3(codes, count, scale, e4m3.data());
      ops_.dequantize_int8(reinterpret_cast<int8_t*>(codes), count, scale, int8.data());
      for (int i = 0; i < 256; ++i) {
        const float want = i < count ? e4m3_to_float(codes[i]) * scale : 5;
        EXPECT_TRUE(e4m3[i] == want || (std::isnan(want) && std::isnan(e4m3[i]))) << i;
        EXPECT_EQ(int8[i], i < count ? static_cast<float>(static_cast<int8_t>(i)) * scale : 5);
      }
    }
  }
}

TEST_P(VectorOpsTest, HalfFloatsMatchReferenceForEveryCode) {
  std::vector<uint16_t> codes(65536);
  for (int i = 0; i < 65536; ++i) codes[i] = static_cast<uint16_t>(i);
  std::vector<float> bf16(65536), f16(65536);
  ops_.from_bf16(codes.data(), 65536, bf16.data());
  ops_.from_f16(codes.data(), 65536, f16.data());
  for (int i = 0; i < 65536; ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(bf16[i]), std::bit_cast<uint32_t>(bf16_to_float(codes[i])));
    ASSERT_EQ(std::bit_cast<uint32_t>(f16[i]), std::bit_cast<uint32_t>(f16_to_float(codes[i])));
  }
}

TEST_P(VectorOpsTest, RoundingToHalfFloatsMatchesReference) {
  std::vector<float> x = anything(200000);
  // Around every f16 value and around the midpoints of neighbours, where ties are.
  for (uint32_t code = 0; code < 65536; code += 3) {
    const auto bits = std::bit_cast<uint32_t>(f16_to_float(static_cast<uint16_t>(code)));
    for (uint32_t near : {0u, 0xfffu, 0x1000u, 0x1001u})
      x.push_back(std::bit_cast<float>(bits + near));
  }
  x.insert(x.end(), std::begin(kSpecial), std::end(kSpecial));
  for (int64_t count : {static_cast<int64_t>(x.size()), int64_t{1}, int64_t{31}}) {
    std::vector<uint16_t> bf16(count + 1, 7), f16(count + 1, 7);
    ops_.to_bf16(x.data(), count, bf16.data());
    ops_.to_f16(x.data(), count, f16.data());
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(bf16[i], float_to_bf16(x[i])) << x[i];
      ASSERT_EQ(f16[i], float_to_f16(x[i])) << x[i];
    }
    EXPECT_EQ(bf16.back(), 7);
    EXPECT_EQ(f16.back(), 7);
  }
}

// ---- sums ----

TEST_P(VectorOpsTest, WeightedSumsAddInRowOrder) {
  for (int64_t count : kCounts) {
    for (int64_t rows : {0, 1, 2, 9}) {
      std::vector<std::vector<float>> values;
      std::vector<const float*> at;
      for (int64_t j = 0; j < rows; ++j) at.push_back(values.emplace_back(normal(count)).data());
      const std::vector<float> weights = normal(rows), before = normal(count);
      for (bool onto : {false, true}) {
        std::vector<float> out = before;
        out.push_back(77);
        ops_.weighted_sum(at.data(), weights.data(), rows, count, onto, out.data());
        EXPECT_EQ(out.back(), 77);
        for (int64_t i = 0; i < count; ++i) {
          double want = onto ? before[i] : 0, size = std::fabs(want);
          for (int64_t j = 0; j < rows; ++j) {
            want += double{weights[j]} * values[j][i];
            size += std::fabs(double{weights[j]} * values[j][i]);
          }
          ASSERT_NEAR(out[i], want, static_cast<double>(rows + 1) * 0x1p-24 * size);
        }
        if (count < 40) continue;
        // A single element has the same bits as in a longer row.
        std::vector<const float*> one;
        for (const float* row : at) one.push_back(row + 33);
        float alone = before[33];
        ops_.weighted_sum(one.data(), weights.data(), rows, 1, onto, &alone);
        EXPECT_EQ(alone, out[33]);
      }
    }
  }
}

TEST_P(VectorOpsTest, StoreRowsAppliesScalesBiasWeightsAndRowMap) {
  std::vector<float> sum(3 * 16), to(4 * 20, 1.0f);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<float>(i);
  const float x_scale[] = {1, 2, 4}, weight[] = {1, 2, 3};
  float w_scale[16], bias[16];
  for (int n = 0; n < 16; ++n) w_scale[n] = static_cast<float>(n % 2 + 1), bias[n] = 0.5f;
  const int32_t to_row[] = {3, 0, 3};
  StoreArgs f{.sum = sum.data(), .rows = 3, .x_scale = x_scale, .x_scale_stride = 1};
  f.w_scale = w_scale;
  f.bias = bias;
  f.to = to.data();
  f.to_stride = 20;
  f.columns = 13;
  ops_.store_rows(f);
  auto value = [&](int r, int n) { return sum[r * 16 + n] * x_scale[r] * w_scale[n] + 0.5f; };
  for (int r = 0; r < 4; ++r) {
    for (int n = 0; n < 20; ++n)
      ASSERT_EQ(to[r * 20 + n], r < 3 && n < 13 ? value(r, n) : 1.0f) << r << " " << n;
  }
  std::fill(to.begin(), to.end(), 1.0f);
  f.add = true;
  f.weight = weight;
  f.to_row = to_row;
  ops_.store_rows(f);
  for (int n = 0; n < 13; ++n) {
    EXPECT_EQ(to[3 * 20 + n], 1 + value(0, n) + 3 * value(2, n));
    EXPECT_EQ(to[n], 1 + 2 * value(1, n));
    EXPECT_EQ(to[20 + n], 1.0f);
  }
}

TEST_P(VectorOpsTest, GroupSumsAddColumnsOfEachGroup) {
  for (const int64_t count : kCounts) {
    for (const int64_t group : {1, 7, 16, 32, 100}) {
      const std::vector<float> x = normal(count);
      const int64_t groups = (count + group - 1) / group;
      std::vector<float> sums(groups + 1, 77.0f);
      ops_.group_sums(x.data(), count, group, sums.data());
      EXPECT_EQ(sums[groups], 77);
      for (int64_t g = 0; g < groups; ++g) {
        double sum = 0, size = 0;
        for (int64_t i = g * group; i < std::min(count, (g + 1) * group); ++i)
          sum += x[i], size += std::fabs(x[i]);
        EXPECT_NEAR(sums[g], sum, static_cast<double>(group) * 0x1p-24 * size);
      }
    }
  }
}

TEST_P(VectorOpsTest, CodeSumsAddColumnsOfEachGroup) {
  for (const int64_t count : kCounts) {
    std::vector<int8_t> codes(count);
    for (int8_t& code : codes) code = static_cast<int8_t>(random_());
    for (const int64_t group : {8, 16, 24, 64, 300}) {
      std::vector<int32_t> want((count + group - 1) / group), sums(want.size() + 1, 7);
      for (int64_t i = 0; i < count; ++i) want[i / group] += codes[i];
      ops_.code_sums(codes.data(), count, group, sums.data());
      EXPECT_EQ(sums.back(), 7) << count;
      sums.pop_back();
      EXPECT_EQ(sums, want) << count << " codes in groups of " << group;
    }
  }
}

TEST_P(VectorOpsTest, PowersOfTwoOfEveryExponent) {
  std::vector<uint8_t> exponents(256);
  for (int e = 0; e < 256; ++e) exponents[e] = static_cast<uint8_t>(e);
  std::vector<float> to(256);
  for (const bool half : {false, true}) {
    ops_.powers_of_two(exponents.data(), 256, half, to.data());
    for (int e = 0; e < 255; ++e) {
      const float power = std::ldexp(1.0f, e - 127 - half);
      EXPECT_EQ(to[e], power < 0x1p-126f ? 0 : power) << e;
    }
    EXPECT_TRUE(std::isnan(to[255]));
  }
}

TEST_P(VectorOpsTest, SubtractsMinimumsTimesSumsOfTheirColumns) {
  for (const int64_t groups : {1, 2, 5, 64}) {
    const std::vector<float> minimum = normal(groups * 16), x_sum = normal(groups * 7),
                             scale = normal(16), before = normal(7 * 16);
    for (const bool scaled : {false, true}) {
      std::vector<float> sum = before;
      MinimumArgs args{.sum = sum.data(), .rows = 7, .groups = groups, .x_sum_stride = groups};
      args.scale = scaled ? scale.data() : nullptr;
      args.minimum = minimum.data();
      args.x_sum = x_sum.data();
      ops_.subtract_minimums(args);
      for (int64_t at = 0; at < 7 * 16; ++at) {
        double exact = before[at] * (scaled ? double{scale[at % 16]} : 1), size = std::fabs(exact);
        for (int64_t g = 0; g < groups; ++g) {
          const double part = double{x_sum[at / 16 * groups + g]} * minimum[g * 16 + at % 16];
          exact -= part;
          size += std::fabs(part);
        }
        EXPECT_NEAR(sum[at], exact, static_cast<double>(groups + 4) * 0x1p-24 * size);
      }
      // The other rows of a call do not change the bits of a row.
      std::vector<float> alone(before.begin() + 6 * 16, before.end());
      args.sum = alone.data();
      args.rows = 1;
      args.x_sum += 6 * groups;
      ops_.subtract_minimums(args);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), sum.begin() + 6 * 16));
    }
  }
}

TEST_P(VectorOpsTest, RowsAreAddedAndScaledElementByElement) {
  for (int64_t count : kCounts) {
    const std::vector<float> x = normal(count), y = normal(count);
    std::vector<float> sum = y, scaled(count), both(count);
    ops_.add(x.data(), count, sum.data());
    ops_.scale(x.data(), 0.3f, count, scaled.data());
    ops_.scale_by(x.data(), 0.3f, y.data(), count, both.data());
    double squares = 0, dot = 0, size = 0;
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_EQ(sum[i], y[i] + x[i]);
      EXPECT_EQ(scaled[i], x[i] * 0.3f);
      EXPECT_EQ(both[i], x[i] * 0.3f * y[i]);
      squares += double{x[i]} * x[i];
      dot += double{x[i]} * y[i];
      size += std::fabs(double{x[i]} * y[i]);
    }
    EXPECT_NEAR(ops_.dot(x.data(), y.data(), count), dot,
                static_cast<double>(count + 8) * 0x1p-24 * size);
    EXPECT_NEAR(ops_.sum_of_squares(x.data(), count), squares, 1e-14 * squares);
  }
  EXPECT_EQ(ops_.largest(nullptr, 0), -kInf);
  for (int64_t count : {1, 7, 64, 257}) {
    for (int64_t at : {int64_t{0}, count / 2, count - 1}) {
      std::vector<float> x(count, -3);
      x[at] = -2;
      EXPECT_EQ(ops_.largest(x.data(), count), -2);
      for (const int64_t nan : {int64_t{0}, count / 2, count - 1, at}) {
        std::vector<float> with = x;
        with[nan] = NAN;
        EXPECT_TRUE(std::isnan(ops_.largest(with.data(), count))) << nan << " of " << count;
      }
    }
  }
  const std::vector<float> huge(40, 1e30f);
  EXPECT_NEAR(ops_.sum_of_squares(huge.data(), 40), 4e61, 1e55);
}

TEST_P(VectorOpsTest, RopeAnglesAreSinesAndCosinesOfFloatProduct) {
  std::vector<float> frequencies = {1, 0, 0.5f, 1e-6f};
  for (float f : normal(60)) frequencies.push_back(std::fabs(f) * 0.25f);
  for (float position : {0.0f, 1.0f, 2.0f, 77.0f, 4095.0f, 131071.0f, 1048575.0f}) {
    for (int64_t count : {64, 63, 1, 7}) {
      std::vector<float> cosines(65, 77), sines(65, 77);
      ops_.cos_sin(position, frequencies.data(), count, 1, cosines.data(), sines.data());
      EXPECT_EQ(cosines[count], 77);
      EXPECT_EQ(sines[count], 77);
      for (int64_t i = 0; i < count; ++i) {
        const float angle = position * frequencies[i];
        EXPECT_LE(ulps(cosines[i], std::cos(double{angle})), 0.51) << angle;
        EXPECT_LE(ulps(sines[i], std::sin(double{angle})), 0.51) << angle;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, VectorOpsTest,
                         ::testing::Range(0, static_cast<int>(std::size(kTables))),
                         [](const auto& table) {
                           return std::string(kTables[table.param].ops->isa);
                         });

}  // namespace
}  // namespace moracle::cpu::vector_ops_test
