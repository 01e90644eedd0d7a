// Tests rows of floats as int16, and their products with packed codes.
#include <cmath>
#include <random>

#include "kernels/ukernel_cases.h"

#if defined(__x86_64__)

namespace moracle::cpu::dot_int16_test {
namespace {

// Columns of each eight in rows.
constexpr int kOrder[] = {0, 2, 1, 3, 4, 6, 5, 7};

struct Converted {
  std::vector<int16_t> codes;  // in the order of columns
  std::vector<int32_t> sums;
  std::vector<float> scales;
};
Converted converted(const std::vector<float>& x, int64_t run) {
  const auto count = static_cast<int64_t>(x.size()), runs = (count + run - 1) / run;
  std::vector<int16_t> stored((count + 7) / 8 * 8, int16_t{99});
  Converted to{std::vector<int16_t>(stored.size()), std::vector<int32_t>(runs),
               std::vector<float>(runs)};
  pack_f32_to_i16_avx2({.from = x.data(),
                        .count = count,
                        .to = reinterpret_cast<std::byte*>(stored.data()),
                        .segment = run,
                        .sums = to.sums.data(),
                        .scales = to.scales.data()});
  for (size_t i = 0; i < stored.size(); ++i) to.codes[i / 8 * 8 + kOrder[i % 8]] = stored[i];
  return to;
}

class Int16Rows : public ::testing::Test {
  void SetUp() override {
    if (!has(Isa::kAvx2)) GTEST_SKIP() << "needs avx2";
  }
};

TEST_F(Int16Rows, HoldFloatsWithinHalfStepOfLargestInRun) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const int64_t count : {1, 7, 8, 128, 129, 300}) {
    for (const float size : {1.0f, 3e37f, 1e-38f, 0.0f}) {
      for (const int64_t run : {32, 128}) {
        std::vector<float> x(count);
        for (float& v : x) v = size * normal(random);
        const Converted made = converted(x, run);
        for (int64_t r = 0; r < static_cast<int64_t>(made.sums.size()); ++r) {
          const int64_t end = std::min(count, (r + 1) * run);
          double largest = 0;
          for (int64_t i = r * run; i < end; ++i)
            largest = std::max(largest, std::fabs(double{x[i]}));
          int64_t sum = 0;
          for (int64_t i = r * run; i < end; ++i) {
            sum += made.codes[i];
            const double value = double{made.scales[r]} * made.codes[i];
            // Half a step, and the roundings of the scale and of the product.
            ASSERT_LE(std::fabs(value - x[i]), 0x1.01p-16 * largest + 1e-34) << x[i];
          }
          EXPECT_EQ(made.sums[r], sum);
        }
        for (size_t i = count; i < made.codes.size(); ++i) EXPECT_EQ(made.codes[i], 0);
      }
    }
  }
}

TEST_F(Int16Rows, ScaleOfRunWithInfinityOrNanIsNan) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    std::vector<float> x(96, 1.0f);
    x[40] = bad;
    const Converted made = converted(x, 32);
    EXPECT_FALSE(std::isnan(made.scales[0]));
    EXPECT_TRUE(std::isnan(made.scales[1]));
    EXPECT_FALSE(std::isnan(made.scales[2]));
    EXPECT_EQ(made.sums[1], 0);
  }
}

// The reason why requests that allow bf16 get int16: even where one value in a hundred is fifty
// times as large, int16 loses less.
TEST_F(Int16Rows, LoseFewerBitsThanBf16) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const float outlier : {1.0f, 50.0f}) {
    std::vector<float> x(128 * 200);
    for (float& v : x) v = normal(random) * (random() % 100 == 0 ? outlier : 1);
    const Converted made = converted(x, 128);
    double lost = 0, lost_by_bf16 = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      lost += std::pow(made.scales[i / 128] * made.codes[i] - x[i], 2);
      lost_by_bf16 += std::pow(bf16_to_float(float_to_bf16(x[i])) - x[i], 2);
    }
    EXPECT_LT(std::sqrt(lost / lost_by_bf16), outlier == 1 ? 0.03 : 0.08) << outlier;
  }
}

struct Kind {
  const char* name;
  DType w;
  int bits;
  double (*value)(int code);
  int64_t segment_cols;
};
const Kind kKinds[] = {
    {"i4", DType::kI4, 4, [](int c) { return double{c < 8 ? c : c - 16.0}; }, 128},
    {"i8", DType::kI8, 8, [](int c) { return double{c < 128 ? c : c - 256.0}; }, 256},
    // Twice the value.
    {"e2m1", DType::kF4E2M1, 4,
     [](int c) { return 2 * double{e2m1_to_float(static_cast<uint8_t>(c))}; }, 32},
};

class Int16Codes : public DotKernels {};

// Sums of a segment are exact: the largest codes of both sides stay within i32.
TEST_P(Int16Codes, MatchExactSumsForAnyNumberOfRows) {
  std::mt19937 random(5);
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    constexpr int64_t kSegments = 3;
    const int64_t cols = kSegments * kind.segment_cols, stride = cols * 2 + 64;
    const int64_t block_cols = 32 / kind.bits, row_blocks = cols / block_cols;
    RowBlocks x(kMaxBlockRows * stride / 64 + 1),
        codes[2] = {RowBlocks(row_blocks), RowBlocks(row_blocks)};
    std::vector<int32_t> x_sums(kMaxBlockRows * kSegments);
    std::vector<float> x_scales(kMaxBlockRows * kSegments);
    auto x_at = [&](int r, int64_t c) -> int16_t& {
      int64_t at = 0;
      while (kOrder[at] != c % 8) ++at;
      return *reinterpret_cast<int16_t*>(x.data() + r * stride + (c / 8 * 8 + at) * 2);
    };
    for (int r = 0; r < kMaxBlockRows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int value = static_cast<int>(random() % 65535) - 32767;
        x_at(r, c) = static_cast<int16_t>(r == 1 ? 32767 : r == 2 ? -32767 : value);
        x_sums[r * kSegments + c / kind.segment_cols] += x_at(r, c);
      }
      for (int u = 0; u < kSegments; ++u)
        x_scales[r * kSegments + u] = static_cast<float>(1 + random() % 7) / 8;
    }
    float w_scale[2][kSegments * 16];
    int8_t zero[2][kSegments * 16];
    for (int p = 0; p < 2; ++p) {
      // The second panel has the smallest codes and the largest zero points.
      for (int64_t i = 0; i < row_blocks * kRowBlockBytes; ++i)
        codes[p].data()[i] = static_cast<std::byte>(p == 0           ? random()
                                                    : kind.bits == 4 ? 0x88
                                                                     : 0x80);
      for (int i = 0; i < kSegments * 16; ++i) {
        w_scale[p][i] = static_cast<float>(1 + random() % 100) / 64;
        zero[p][i] = static_cast<int8_t>(p == 0 ? random() % 16 : 127);
      }
    }
    auto value = [&](int p, int n, int64_t c) {
      const int64_t at = c / block_cols * kRowBlockBytes + 4 * n + c % 4;
      const auto byte = static_cast<int>(codes[p].data()[at]);
      return kind.value(kind.bits == 8 ? byte : c % 8 < 4 ? byte & 15 : byte >> 4);
    };
    for (const int rows : {1, 2, 3, 4, 5, 6, 7, 13, kMaxBlockRows}) {
      for (int panels = 1; panels <= 2; ++panels) {
        const bool zeros = kind.bits != 4 || rows % 2 == 0;
        DotArgs b{.x = x.data(), .x_stride = stride, .rows = rows, .panels = panels};
        b.segments = kSegments;
        b.segment_blocks = kind.segment_cols / block_cols;
        b.overwrite = panels == 1;
        b.x_sum = x_sums.data();
        b.x_sum_stride = kSegments;
        b.x_scale = x_scales.data();
        b.x_scale_stride = kSegments;
        b.x_scale_step = 1;
        b.prefetch_every = rows % 3 == 0 ? 2 : 0;
        std::vector<float> sums[2];
        for (int p = 0; p < panels; ++p) {
          sums[p].assign(rows * 16, 1.0f);
          b.sum[p] = sums[p].data();
          b.w[p] = b.prefetch[p] = codes[p].data();
          b.w_scale[p] = w_scale[p];
          b.w_zero[p] = zeros ? zero[p] : nullptr;
        }
        multiply(kind.w, b);
        for (int p = 0; p < panels; ++p) {
          for (int i = 0; i < rows * 16; ++i) {
            const int r = i / 16, n = i % 16;
            double sum = b.overwrite ? 0 : 1, size = 1;
            for (int64_t u = 0; u < kSegments; ++u) {
              double exact = 0;
              for (int64_t c = u * kind.segment_cols; c < (u + 1) * kind.segment_cols; ++c)
                exact += (value(p, n, c) - (zeros ? zero[p][u * 16 + n] : 0)) * x_at(r, c);
              const double scaled = exact * x_scales[r * kSegments + u] * w_scale[p][u * 16 + n];
              sum += scaled;
              size += std::fabs(scaled);
            }
            ASSERT_NEAR(sums[p][i], sum, size * 0x1p-21) << rows << " rows, " << i;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Int16Codes,
                         ::testing::Values(KernelCase{&ukernels(DotIsa::kAvx2), Operand::kInt16,
                                                      Isa::kAvx2, "avx2"},
                                           KernelCase{&ukernels(DotIsa::kAvxVnni), Operand::kInt16,
                                                      kAvxVnni, "avx_vnni"}),
                         case_name);

}  // namespace
}  // namespace moracle::cpu::dot_int16_test

#endif
