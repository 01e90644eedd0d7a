// Tests kernels that multiply stored codes by integer or f16 scales, against exact sums.
#include <cmath>
#include <random>

#include "kernels/cpu/gemm/macro_kernel.h"
#include "kernels/ukernel_cases.h"
#include "quant/code_set.h"

#if defined(__x86_64__)

namespace moracle::cpu::dot_steps_test {
namespace {

// The stored numbers of a panel, and the integers that they encode.
class Panel {
 public:
  Panel(DType dtype, CodeSet set, int64_t cols)
      : set_(set),
        bits_(dtype == DType::kI4 ? 4 : code_bits(set)),
        unit_(set == CodeSet::kAny ? 32 / bits_ : code_unit(set)),
        blocks_(unit_ * bits_ / 32),
        bytes_(cols / unit_ * blocks_) {}

  const std::byte* data() { return bytes_.data(); }
  void put(int row, int64_t col, int number) {
    const int64_t in = col % unit_;
    std::byte* const unit =
        bytes_.data() + col / unit_ * blocks_ * kRowBlockBytes + row * 4 + col % 4;
    if (bits_ == 8) {
      *unit = static_cast<std::byte>(number);
      return;
    }
    unit[in / 8 * kRowBlockBytes] |= static_cast<std::byte>((number & 15) << (in % 8 < 4 ? 0 : 4));
    if (bits_ > 4)
      unit[(blocks_ - 1) * kRowBlockBytes] |=
          static_cast<std::byte>((number >> 4) << (in / 4 * (bits_ - 4)));
  }
  int code(int number) const {
    const int sign = 1 << (bits_ - 1);
    return set_ == CodeSet::kAny ? (number ^ sign) - sign : code_of(set_, number);
  }
  int most_number() const { return (1 << bits_) - 1; }
  /// The number of the code with the largest magnitude.
  int extreme() const {
    if (set_ == CodeSet::kAny) return 1 << (bits_ - 1);
    int most = 0;
    for (int number = 1; number <= most_number(); ++number) {
      if (std::abs(code(number)) > std::abs(code(most))) most = number;
    }
    return most;
  }

 private:
  CodeSet set_;
  int bits_;
  int64_t unit_, blocks_;
  RowBlocks bytes_;
};

struct Kind {
  CodeSet set;
  int group_cols;
  bool minimums, zero;
  DType scales = DType::kI8;
  DType dtype = set == CodeSet::kAny ? DType::kI4 : DType::kI8;
};
constexpr Kind kKinds[] = {
    {CodeSet::kAny, 32, true, true},
    {CodeSet::kAny, 16, false, false},
    {CodeSet::kAny, 16, true, false},
    {CodeSet::kUnsigned5, 32, true, false},
    {CodeSet::kSigned6, 16, false, false},
    {CodeSet::kIq4, 32, false, false},
    {CodeSet::kIq3Xxs, 32, false, false},
    {CodeSet::kIq2, 16, false, false},
    {CodeSet::kSigned6, 64, true, false},
    {CodeSet::kAny, 32, false, false, DType::kF16},
    {CodeSet::kAny, 32, false, false, DType::kF16, DType::kI8},
    {CodeSet::kAny, 16, false, false, DType::kF16, DType::kI8},
    {CodeSet::kIq4, 32, false, false, DType::kF16},
};

QuantKey key_of(const Kind& kind) {
  QuantKey key = with_codes(int8_static_group(kind.group_cols), kind.set);
  if (kind.dtype == DType::kI4) key = int4_static_group(kind.group_cols);
  return with_scales(key, kind.scales);
}

/// Random numbers of a test.
class Between {
 public:
  explicit Between(unsigned seed) : random_(seed) {}
  int operator()(int least, int most) {
    return least + static_cast<int>(random_() % static_cast<unsigned>(most - least + 1));
  }

 private:
  std::mt19937 random_;
};

/// Rows of x in int8, one or kLimbs each, with their sums and scales. Extreme values have equal
/// signs in all columns of a row.
struct StepRows {
  int row_limbs;
  int64_t stride, groups, super_blocks;
  RowBlocks x;
  std::vector<int32_t> x_sum = {};
  std::vector<float> x_scale = {}, minimum_sum = {};

  StepRows(const Kind& kind, int64_t cols, int rows, int limbs, bool extreme, Between& between)
      : row_limbs(limbs),
        stride((cols + 127) / 64 * 64),
        groups((cols + kind.group_cols - 1) / kind.group_cols),
        super_blocks((cols + kFactorCols - 1) / kFactorCols),
        x((rows + kMaxBlockRows) * limbs * stride / 64),
        x_sum(static_cast<size_t>(rows * limbs * groups)) {
    for (int r = 0; r < rows * limbs; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int value = extreme ? (r % 2 == 0 ? 127 : -127) : between(-127, 127);
        x.data()[r * stride + c] = static_cast<std::byte>(value);
        x_sum[static_cast<size_t>(r * groups + c / kind.group_cols)] += value;
      }
      for (int64_t s = 0; s < super_blocks; ++s)
        x_scale.push_back(static_cast<float>(between(1, 99)) / 64);
    }
    for (int64_t i = 0; i < rows * groups; ++i)
      minimum_sum.push_back(static_cast<float>(between(-999, 999)) / 8);
  }

  /// The arguments of `rows` rows, without weights and results.
  StepDotArgs arguments(const Kind& kind, int rows, int panels) {
    StepDotArgs b;
    b.x = x.data();
    b.x_stride = stride;
    b.rows = rows;
    b.limbs = row_limbs;
    b.x_sum = x_sum.data();
    b.x_sum_stride = groups;
    if (row_limbs > 1) b.x_scale = x_scale.data();
    b.x_scale_stride = super_blocks;
    b.minimum_sum = minimum_sum.data();
    b.minimum_sum_stride = groups;
    b.panels = panels;
    if (has_code_book(kind.set)) {
      b.code_book = code_book(kind.set).data();
      b.factor_unit = factor_unit(kind.set);
    }
    b.zero = kind.zero ? kStepZeroPoint : 0;
    b.group_cols = kind.group_cols;
    b.groups = groups;
    return b;
  }
};

class StepKernels : public DotKernels {
 protected:
  // The kernel for any number of rows scales the exact sum of each group in the same order.
  static void expect_bits_of_segments(const StepDotArgs& b, const Kind& kind, const QuantKey& key,
                                      const std::vector<float> (&sums)[2]) {
    const DotKernel* const dot = ukernels(DotIsa::kAvx2).dot(Operand::kInt8, key.dtype);
    ASSERT_NE(dot, nullptr);
    DotArgs d;
    d.x = b.x;
    d.x_stride = b.x_stride;
    d.rows = d.most_rows = b.rows;
    d.x_sum = b.x_sum;
    d.x_sum_stride = b.x_sum_stride;
    d.panels = 2;
    d.segments = static_cast<int>(b.groups);
    d.segment_blocks = kind.group_cols * bits(key.dtype) / 32;
    d.overwrite = true;
    std::vector<float> expected[2], scales[2];
    for (int p = 0; p < 2; ++p) {
      const int from = p < b.panels ? p : 0;
      for (int64_t i = 0; i < b.groups * kPanelRows; ++i)
        scales[p].push_back(f16_to_float(b.steps[from].factor[i]));
      expected[p].resize(sums[0].size());
      d.w[p] = b.w[from];
      d.w_scale[p] = scales[p].data();
      d.sum[p] = expected[p].data();
    }
    dot->fn(d);
    for (int p = 0; p < b.panels; ++p) EXPECT_EQ(sums[p], expected[p]);
  }
};

// Extreme values have equal signs, so that integer sums are the largest. The last super-block is
// short.
TEST_P(StepKernels, MatchExactSumsForRandomAndExtremeValues) {
  constexpr int64_t kCols = 2 * kFactorCols + 64;
  constexpr int kRows = 5;
  Between between(11);
  for (const Kind& kind : kKinds) {
    const QuantKey key = key_of(kind);
    const bool halves = kind.scales == DType::kF16;
    const StepKernel* const kernel = GetParam().kernels->steps(key, kSkinnyRows);
    const StepKernel* const avx2 = ukernels(DotIsa::kAvx2).steps(key, kSkinnyRows);
    EXPECT_EQ(avx2 == nullptr, kind.dtype == DType::kI8 && kind.set == CodeSet::kAny);
    if (GetParam().kernels == &ukernels(DotIsa::kAvx2) && avx2 == nullptr) continue;
    ASSERT_NE(kernel, nullptr);
    const int64_t groups = kCols / kind.group_cols,
                  factor_cols = halves ? kind.group_cols : kFactorCols,
                  factors = (kCols + factor_cols - 1) / factor_cols,
                  per_factor = factor_cols / kind.group_cols;
    for (const bool extreme : {false, true}) {
      Panel panels[2] = {{kind.dtype, kind.set, kCols}, {kind.dtype, kind.set, kCols}};
      std::vector<int> code[2];
      std::vector<int8_t> step[2], minimum[2];
      std::vector<uint16_t> factor[2], minimum_factor[2];
      for (int p = 0; p < 2; ++p) {
        for (int n = 0; n < kPanelRows; ++n) {
          for (int64_t c = 0; c < kCols; ++c) {
            const int number = extreme ? panels[p].extreme() : between(0, panels[p].most_number());
            panels[p].put(n, c, number);
            code[p].push_back(panels[p].code(number));
          }
        }
        for (int64_t i = 0; i < groups * kPanelRows; ++i) {
          step[p].push_back(static_cast<int8_t>(halves ? 1 : extreme ? -128 : between(-128, 127)));
          minimum[p].push_back(static_cast<int8_t>(extreme ? 127 : between(-128, 127)));
        }
        for (int64_t i = 0; i < factors * kPanelRows; ++i) {
          factor[p].push_back(float_to_f16(static_cast<float>(between(-999, 999)) * 0x1p-12f));
          minimum_factor[p].push_back(float_to_f16(static_cast<float>(between(1, 999)) * 0x1p-9f));
        }
      }
      for (const int limbs : {1, kLimbs}) {
        StepRows x(kind, kCols, kRows, limbs, extreme, between);
        for (int rows = 1; rows <= kRows; ++rows) {
          for (int count = 1; count <= 2; ++count) {
            StepDotArgs b = x.arguments(kind, rows, count);
            std::vector<float> sums[2];
            for (int p = 0; p < count; ++p) {
              sums[p].assign(static_cast<size_t>(rows * kPanelRows), 1.0f);
              b.w[p] = panels[p].data();
              b.steps[p] = {factor[p].data(), halves ? nullptr : step[p].data()};
              if (kind.minimums) b.minimums[p] = {minimum_factor[p].data(), minimum[p].data()};
              b.sum[p] = sums[p].data();
              if (rows == 2) {
                b.codes_jump[p] = 64;
                b.steps_jump[p] = 64;
              }
            }
            kernel->fn(b);
            // Every instruction set gives the same bits.
            StepDotArgs with_avx2 = b;
            std::vector<float> avx2_sums[2];
            for (int p = 0; p < count; ++p) {
              avx2_sums[p].resize(sums[p].size());
              with_avx2.sum[p] = avx2_sums[p].data();
            }
            if (avx2 != nullptr) {
              avx2->fn(with_avx2);
              for (int p = 0; p < count; ++p) EXPECT_EQ(sums[p], avx2_sums[p]);
            }
            if (halves && limbs == 1 && kind.set == CodeSet::kAny)
              expect_bits_of_segments(b, kind, key, sums);
            for (int p = 0; p < count; ++p) {
              for (int i = 0; i < rows * kPanelRows; ++i) {
                const int r = i / kPanelRows, n = i % kPanelRows;
                double sum = 0, size = 0;
                for (int64_t s = 0; s < factors; ++s) {
                  double least = 0, all = 0;
                  for (int64_t g = s * per_factor; g < std::min(groups, (s + 1) * per_factor); ++g)
                    least += minimum[p][g * kPanelRows + n] * double{x.minimum_sum[r * groups + g]};
                  least *= double{f16_to_float(minimum_factor[p][s * kPanelRows + n])};
                  for (int l = 0; l < limbs; ++l) {
                    int64_t exact = 0;
                    const int64_t row = r * limbs + l;
                    for (int64_t c = s * factor_cols; c < std::min(kCols, (s + 1) * factor_cols);
                         ++c)
                      exact += (code[p][n * kCols + c] - b.zero) *
                               static_cast<int>(x.x.at<int8_t>(row * x.stride + c)) *
                               step[p][c / kind.group_cols * kPanelRows + n];
                    const double part =
                        static_cast<double>(exact) *
                        (limbs > 1 ? double{x.x_scale[row * x.super_blocks +
                                                      s * factor_cols / kFactorCols]}
                                   : 1.0) *
                        double{f16_to_float(factor[p][s * kPanelRows + n]) * b.factor_unit};
                    all += part;
                    size += std::abs(part);
                  }
                  sum += all - (kind.minimums ? least : 0);
                  size += kind.minimums ? std::abs(least) : 0;
                }
                // One rounding of each addition, and a few of each part.
                ASSERT_NEAR(sums[p][i], sum, size * static_cast<double>(5 + factors) * 0x1p-24)
                    << kernel->instruction << ", " << static_cast<int>(kind.set) << ", groups of "
                    << kind.group_cols << ", " << rows << " rows of " << limbs << ", row " << r
                    << ", output " << n << (extreme ? ", extreme" : "");
              }
            }
          }
        }
      }
    }
  }
}

// The last super-block has a group of padded columns. Extreme values have equal signs.
TEST_P(StepKernels, ManyRowsHaveBitsOfFewRows) {
  constexpr int64_t kCols = 2 * kFactorCols + 32, kPadded = 2 * kFactorCols + 64;
  constexpr int64_t kSuperBlocks = 3;
  constexpr int kRows = 70;
  const UkernelSet& kernels = *GetParam().kernels;
  Between between(13);
  int passed = 0;
  for (const Kind& kind : kKinds) {
    const QuantKey key = key_of(kind);
    const StepKernel* const many = kernels.steps(key, kTileRows);
    if (many == nullptr) continue;
    ++passed;
    const int64_t groups = (kCols + kind.group_cols - 1) / kind.group_cols;
    for (const bool extreme : {false, true}) {
      Panel panels[2] = {{kind.dtype, kind.set, kPadded}, {kind.dtype, kind.set, kPadded}};
      std::vector<int8_t> step[2], minimum[2];
      std::vector<uint16_t> factor[2];
      for (int p = 0; p < 2; ++p) {
        for (int n = 0; n < kPanelRows; ++n) {
          for (int64_t c = 0; c < kCols; ++c)
            panels[p].put(n, c,
                          extreme ? panels[p].extreme() : between(0, panels[p].most_number()));
        }
        for (int64_t i = 0; i < groups * kPanelRows; ++i) {
          step[p].push_back(static_cast<int8_t>(extreme ? -128 : between(-128, 127)));
          minimum[p].push_back(static_cast<int8_t>(between(-128, 127)));
        }
        for (int64_t i = 0; i < kSuperBlocks * kPanelRows; ++i)
          factor[p].push_back(float_to_f16(static_cast<float>(between(-999, 999)) * 0x1p-12f));
      }
      for (const int limbs : {1, kLimbs}) {
        StepRows x(kind, kCols, kRows, limbs, extreme, between);
        for (const int rows : {1, 5, 8, 16, 17, 32, 47, kRows}) {
          for (int count = 1; count <= 2; ++count) {
            StepDotArgs b = x.arguments(kind, rows, count);
            std::vector<float> sums[2], expected[2];
            for (int p = 0; p < count; ++p) {
              sums[p].assign(static_cast<size_t>(rows * kPanelRows), 1.0f);
              expected[p] = sums[p];
              b.w[p] = panels[p].data();
              b.steps[p] = {factor[p].data(), step[p].data()};
              if (kind.minimums) b.minimums[p] = {factor[p].data(), minimum[p].data()};
              b.sum[p] = expected[p].data();
            }
            kernels.steps(key, kSkinnyRows)->fn(b);
            for (int p = 0; p < count; ++p) b.sum[p] = sums[p].data();
            if (kernels.begin != nullptr) kernels.begin();
            many->fn(b);
            if (kernels.end != nullptr) kernels.end();
            for (int p = 0; p < count; ++p)
              EXPECT_EQ(sums[p], expected[p])
                  << static_cast<int>(kind.set) << ", groups of " << kind.group_cols << ", " << rows
                  << " rows of " << limbs << ", panel " << p << (extreme ? ", extreme" : "");
          }
        }
      }
    }
  }
  if (passed == 0) GTEST_SKIP() << "these instruction sets have no kernel for many rows";
}

// One scale for several sums: the codes and scales are those of the long segment.
TEST_P(StepKernels, PackFloatsWithSumsOfShortSegments) {
  const PackKernel* const pack = GetParam().kernels->pack(DType::kF32, Operand::kInt8);
  ASSERT_NE(pack, nullptr);
  constexpr int64_t kCols = kFactorCols + 80, kShort = 16, kSums = kCols / kShort;
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  std::vector<float> x(kCols);
  for (float& value : x) value = normal(random);
  std::vector<std::byte> codes[2];
  std::vector<float> scales[2];
  std::vector<int32_t> sums[2];
  for (const bool short_sums : {false, true}) {
    codes[short_sums].resize(kLimbs * kCols);
    scales[short_sums].resize(kLimbs * 2);
    sums[short_sums].resize(kLimbs * kSums);
    PackArgs a;
    a.from = x.data();
    a.count = kCols;
    a.to = codes[short_sums].data();
    a.limb_stride = kCols;
    a.segment = short_sums ? kShort : kFactorCols;
    a.segments = short_sums ? kSums : 2;
    a.scale_segments = short_sums ? kFactorCols / kShort : 1;
    a.sums = sums[short_sums].data();
    a.scales = scales[short_sums].data();
    pack->fn(a);
  }
  EXPECT_EQ(codes[1], codes[0]);
  EXPECT_EQ(scales[1], scales[0]);
  for (int64_t p = 0; p < kLimbs; ++p) {
    for (int64_t s = 0; s < kSums; ++s) {
      int32_t sum = 0;
      for (int64_t c = s * kShort; c < (s + 1) * kShort; ++c)
        sum += static_cast<int8_t>(codes[1][p * kCols + c]);
      EXPECT_EQ(sums[1][p * kSums + s], sum) << p << " " << s;
    }
  }
}

std::vector<KernelCase> step_cases() {
  std::vector<KernelCase> cases;
  for (const KernelCase& c : int8_cases())
    if (c.kernels != &ukernels(DotIsa::kPortable)) cases.push_back(c);
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Isa, StepKernels, ::testing::ValuesIn(step_cases()), case_name);

}  // namespace
}  // namespace moracle::cpu::dot_steps_test

#endif
