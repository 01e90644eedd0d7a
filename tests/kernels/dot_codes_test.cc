// Tests kernels that multiply a few rows by packed codes without a decode buffer.
#include <cmath>
#include <random>

#include "kernels/ukernel_cases.h"

#if defined(__x86_64__)

namespace moracle::cpu::lines_codes_test {
namespace {

// A few rows of codes give the bits of the int8 line kernels.
class FewInt8Rows : public LineBlocks {};

TEST_P(FewInt8Rows, MatchInt8LinesBitForBit) {
  const LineKernels& kernels = *GetParam().kernels;
  std::mt19937 random(3);
  constexpr int64_t kUnits = 3, kLines = 16 * kUnits, kStride = kLines * 4 + 64;
  Lines codes[2] = {Lines(kLines / 2), Lines(kLines / 2)},
        lines[2] = {Lines(kLines), Lines(kLines)};
  Lines x(kMaxBlockRows * kStride / 64);
  std::vector<int32_t> x_sums(kMaxBlockRows * kUnits);
  for (int r = 0; r < kMaxBlockRows; ++r) {
    for (int64_t c = 0; c < kLines * 4; ++c) {
      // The last rows have the largest codes: with equal signs their sums are the largest.
      const int value = r >= kMaxBlockRows - 2 ? 127
                        : r == 0 || r == 1     ? least_x_
                                               : static_cast<int>(random() % 256) - 128;
      x.data()[r * kStride + c] = static_cast<std::byte>(std::max(least_x_, value));
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
      // The second panel has the largest weights.
      for (int64_t i = 0; i < kLines * 32; ++i)
        codes[p].data()[i] = static_cast<std::byte>(p == 0 ? random() : 0x77);
      for (int64_t i = 0; i < kLines * kLineBytes; ++i) {
        const int64_t line = i / kLineBytes;
        const int byte = codes[p].at<uint8_t>(line / 2 * kLineBytes + i % kLineBytes);
        const auto code = static_cast<uint8_t>(line % 2 == 0 ? byte & 15 : byte >> 4);
        const float value = fp4 ? 2 * e2m1_to_float(code) : static_cast<float>((code ^ 8) - 8);
        lines[p].data()[i] = static_cast<std::byte>(static_cast<int>(value));
      }
    }
    const int most_rows = kernels.codes_for_all_rows ? kMaxBlockRows : kernels.code_block;
    for (int rows = 1; rows <= most_rows; ++rows) {
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
            b.prefetch[p] = b.lines[p];
          }
          if (from_codes) b.prefetch_every = 1, b.prefetch_turn = 4;
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

// bf16 times codes of 4 and 8 bits gives the bits of decoded lines, for any number of rows. Random
// e4m3 codes include zeros and subnormals.
TEST(Bf16Codes, MatchDecodedLinesBitForBit) {
  constexpr Isa kNeeds = kVnni | Isa::kAvx512Bf16;
  if (!has(kNeeds)) GTEST_SKIP() << "needs " << names(kNeeds);
  const LineKernels& kernels = kAvx512Bf16Lines;
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  constexpr int64_t kUnits = 2, kLines = 16 * kUnits, kColumns = kLines * 2,
                    kStride = kColumns * 2 + 64;
  Lines x(kMaxBlockRows * kStride / 64 + 1);
  std::vector<float> row(kColumns);
  for (int r = 0; r < kMaxBlockRows; ++r) {
    for (float& value : row) value = normal(random);
    kernels.rows->f32_to_bf16(row.data(), kColumns, kernels.decoders->order, x.data() + r * kStride,
                              nullptr);
  }
  float scales[kUnits * 16];
  for (float& scale : scales) scale = normal(random);
  const struct {
    void (*decode)(const LineCodes&);
    void (*multiply)(const LineBlock&);
    int64_t ratio;  // decoded lines for each line of codes
  } kinds[] = {{kernels.decoders->i4_to_bf16, kernels.bf16_by_i4, 4},
               {kernels.decoders->e2m1_to_bf16, kernels.bf16_by_e2m1, 4},
               {kernels.decoders->e4m3_to_bf16, kernels.bf16_by_e4m3, 2}};
  for (const auto& kind : kinds) {
    const int64_t code_lines = kLines / kind.ratio;
    Lines codes[2] = {Lines(code_lines), Lines(code_lines)},
          lines[2] = {Lines(kLines), Lines(kLines)};
    for (int p = 0; p < 2; ++p) {
      for (int64_t i = 0; i < code_lines * kLineBytes; ++i) {
        const auto byte = static_cast<uint8_t>(random());
        const bool nan = kind.ratio == 2 && (byte & 0x7f) == 0x7f;
        codes[p].data()[i] = static_cast<std::byte>(nan ? 0 : byte);
      }
      kind.decode({.codes = codes[p].data(), .lines = code_lines, .to = lines[p].data()});
    }
    for (int rows = 1; rows <= kMaxBlockRows; ++rows) {
      for (int panels = 1; panels <= 2; ++panels) {
        std::vector<float> sums[2][2];
        for (const bool from_codes : {false, true}) {
          LineBlock b{.x = x.data(), .x_stride = kStride, .rows = rows, .panels = panels};
          b.units = kUnits;
          b.unit_lines = (from_codes ? code_lines : kLines) / kUnits;
          b.overwrite = rows % 2 == 0;
          for (int p = 0; p < panels; ++p) {
            sums[from_codes][p].assign(rows * 16, 1.0f);
            b.sum[p] = sums[from_codes][p].data();
            b.lines[p] = from_codes ? codes[p].data() : lines[p].data();
            b.w_scale[p] = scales;
          }
          (from_codes ? kind.multiply : kernels.bf16)(b);
        }
        for (int p = 0; p < panels; ++p) EXPECT_EQ(sums[1][p], sums[0][p]) << rows << " rows";
      }
    }
  }
}

// A NaN among e4m3 codes reaches its own output only.
TEST(Bf16Codes, NanCodeGivesNanInItsOutput) {
  constexpr Isa kNeeds = kVnni | Isa::kAvx512Bf16;
  if (!has(kNeeds)) GTEST_SKIP() << "needs " << names(kNeeds);
  constexpr int64_t kLines = 8, kStride = kLines * 8;
  Lines x(kMaxBlockRows * kStride / 64 + 1), codes(kLines);
  for (int64_t i = 0; i < kLines * kLineBytes; ++i) codes.data()[i] = std::byte{0x38};  // 1
  for (int64_t i = 0; i < kMaxBlockRows * kStride; i += 2)
    x.data()[i] = std::byte{0x80}, x.data()[i + 1] = std::byte{0x3f};  // 1 in bf16
  codes.data()[3 * kLineBytes + 4 * 5 + 2] = std::byte{0xff};          // output 5
  float sums[3 * kLineRows];
  LineBlock b{.x = x.data(), .x_stride = kStride, .rows = 3, .panels = 1};
  b.unit_lines = kLines;
  b.overwrite = true;
  b.lines[0] = codes.data();
  b.sum[0] = sums;
  kAvx512Bf16Lines.bf16_by_e4m3(b);
  for (int i = 0; i < 3 * kLineRows; ++i) {
    if (i % kLineRows == 5)
      EXPECT_TRUE(std::isnan(sums[i])) << i;
    else
      EXPECT_EQ(sums[i], 4 * kLines) << i;
  }
}

class FewRows : public LineBlocks {};

// Compares a few f32 rows times codes of every kind with sums in double: groups, zero points,
// scales, and the e4m3 codes that are not normal numbers.
TEST_P(FewRows, FloatRowsMultiplyPackedCodes) {
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

// The NaN code gets no special treatment.
TEST_P(FewRows, FloatRowsKeepNanOfCode) {
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

INSTANTIATE_TEST_SUITE_P(Isa, FewInt8Rows, ::testing::ValuesIn(int8_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Isa, FewRows, ::testing::ValuesIn(kCases), case_name);

}  // namespace
}  // namespace moracle::cpu::lines_codes_test

#endif
