// Tests kernels that multiply a few rows by packed codes without a unpack buffer.
#include <cmath>
#include <random>

#include "kernels/ukernel_cases.h"

#if defined(__x86_64__)

namespace moracle::cpu::dot_codes_test {
namespace {

// A few rows of codes give the bits of the int8 row block kernels.
class SkinnyInt8 : public DotKernels {};

TEST_P(SkinnyInt8, MatchInt8KernelsBitForBit) {
  const UkernelSet& kernels = *GetParam().kernels;
  std::mt19937 random(3);
  constexpr int64_t kSegments = 3, kBlocks = 16 * kSegments, kStride = kBlocks * 4 + 64;
  RowBlocks codes[2] = {RowBlocks(kBlocks / 2), RowBlocks(kBlocks / 2)},
            row_blocks[2] = {RowBlocks(kBlocks), RowBlocks(kBlocks)};
  RowBlocks x(kMaxBlockRows * kStride / 64);
  std::vector<int32_t> x_sums(kMaxBlockRows * kSegments);
  for (int r = 0; r < kMaxBlockRows; ++r) {
    for (int64_t c = 0; c < kBlocks * 4; ++c) {
      // The last rows have the largest codes: with equal signs their sums are the largest.
      const int value = r >= kMaxBlockRows - 2 ? 127
                        : r == 0 || r == 1     ? least_x_
                                               : static_cast<int>(random() % 256) - 128;
      x.data()[r * kStride + c] = static_cast<std::byte>(std::max(least_x_, value));
      x_sums[r * kSegments + c / 64] += static_cast<int8_t>(x.data()[r * kStride + c]);
    }
  }
  float scales[2][kSegments * 16];
  int8_t zeros[2][kSegments * 16];
  for (int i = 0; i < 2 * kSegments * 16; ++i) {
    scales[i / (kSegments * 16)][i % (kSegments * 16)] = static_cast<float>(random() % 100) / 64;
    zeros[i / (kSegments * 16)][i % (kSegments * 16)] = static_cast<int8_t>(random());
  }
  for (bool fp4 : {false, true}) {
    for (int p = 0; p < 2; ++p) {
      // The second panel has the largest weights.
      for (int64_t i = 0; i < kBlocks * 32; ++i)
        codes[p].data()[i] = static_cast<std::byte>(p == 0 ? random() : 0x77);
      for (int64_t i = 0; i < kBlocks * kRowBlockBytes; ++i) {
        const int64_t row_block = i / kRowBlockBytes;
        const int byte = codes[p].at<uint8_t>(row_block / 2 * kRowBlockBytes + i % kRowBlockBytes);
        const auto code = static_cast<uint8_t>(row_block % 2 == 0 ? byte & 15 : byte >> 4);
        const float value = fp4 ? 2 * e2m1_to_float(code) : static_cast<float>((code ^ 8) - 8);
        row_blocks[p].data()[i] = static_cast<std::byte>(static_cast<int>(value));
      }
    }
    const DType w = fp4 ? DType::kF4E2M1 : DType::kI4;
    const int most_rows = kernels.dot(Operand::kInt8, w)->rows;
    for (int rows = 1; rows <= most_rows; ++rows) {
      for (int panels = 1; panels <= 2; ++panels) {
        std::vector<float> sums[2][2];
        for (bool from_codes : {false, true}) {
          DotArgs b{.x = x.data(), .x_stride = kStride, .rows = rows, .panels = panels};
          b.segments = kSegments;
          b.segment_blocks = from_codes ? 8 : 16;
          b.overwrite = true;
          b.x_sum = x_sums.data();
          b.x_sum_stride = kSegments;
          for (int p = 0; p < panels; ++p) {
            sums[from_codes][p].assign(rows * 16, 1.0f);
            b.sum[p] = sums[from_codes][p].data();
            b.w[p] = from_codes ? codes[p].data() : row_blocks[p].data();
            b.w_scale[p] = scales[p];
            b.w_zero[p] = rows % 2 == 0 ? zeros[p] : nullptr;
            b.prefetch[p] = b.w[p];
          }
          if (from_codes) b.prefetch_every = 1, b.prefetch_switch = 4;
          multiply(from_codes ? w : DType::kI8, b);
        }
        for (int p = 0; p < panels; ++p) EXPECT_EQ(sums[1][p], sums[0][p]) << rows << " rows";
      }
    }
  }
}

// bf16 times codes of 4 and 8 bits gives the bits of unpacked row blocks, for any number of rows.
// Random e4m3 codes include zeros and subnormals.
TEST(Bf16Codes, MatchUnpackedCodesBitForBit) {
  constexpr Isa kNeeds = kVnni | Isa::kAvx512Bf16;
  if (!has(kNeeds)) GTEST_SKIP() << "needs " << names(kNeeds);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  constexpr int64_t kSegments = 2, kBlocks = 16 * kSegments, kColumns = kBlocks * 2,
                    kStride = kColumns * 2 + 64;
  RowBlocks x(kMaxBlockRows * kStride / 64 + 1);
  std::vector<float> row(kColumns);
  for (int r = 0; r < kMaxBlockRows; ++r) {
    for (float& value : row) value = normal(random);
    pack_f32_to_bf16_avx512vnni({.from = row.data(),
                                 .count = kColumns,
                                 .to = x.data() + r * kStride,
                                 .order = ukernels(DotIsa::kAvx512Bf16).order});
  }
  float scales[kSegments * 16];
  for (float& scale : scales) scale = normal(random);
  const struct {
    void (*unpack)(const UnpackBlocksArgs&);
    void (*multiply)(const DotArgs&);
    int64_t ratio;  // unpacked row blocks for each row block of codes
  } kinds[] = {{unpack_i4_to_bf16_avx512vnni, dot_x_bf16_w_i4_r8_avx512bf16, 4},
               {unpack_e2m1_to_bf16_avx512vnni, dot_x_bf16_w_e2m1_r8_avx512bf16, 4},
               {unpack_e4m3_to_bf16_avx512vnni, dot_x_bf16_w_e4m3_r8_avx512bf16, 2}};
  for (const auto& kind : kinds) {
    const int64_t code_blocks = kBlocks / kind.ratio;
    RowBlocks codes[2] = {RowBlocks(code_blocks), RowBlocks(code_blocks)},
              row_blocks[2] = {RowBlocks(kBlocks), RowBlocks(kBlocks)};
    for (int p = 0; p < 2; ++p) {
      for (int64_t i = 0; i < code_blocks * kRowBlockBytes; ++i) {
        const auto byte = static_cast<uint8_t>(random());
        const bool nan = kind.ratio == 2 && (byte & 0x7f) == 0x7f;
        codes[p].data()[i] = static_cast<std::byte>(nan ? 0 : byte);
      }
      kind.unpack({.codes = codes[p].data(), .blocks = code_blocks, .to = row_blocks[p].data()});
    }
    for (int rows = 1; rows <= kMaxBlockRows; ++rows) {
      for (int panels = 1; panels <= 2; ++panels) {
        std::vector<float> sums[2][2];
        for (const bool from_codes : {false, true}) {
          DotArgs b{.x = x.data(), .x_stride = kStride, .rows = rows, .panels = panels};
          b.segments = kSegments;
          b.segment_blocks = (from_codes ? code_blocks : kBlocks) / kSegments;
          b.overwrite = rows % 2 == 0;
          for (int p = 0; p < panels; ++p) {
            sums[from_codes][p].assign(rows * 16, 1.0f);
            b.sum[p] = sums[from_codes][p].data();
            b.w[p] = from_codes ? codes[p].data() : row_blocks[p].data();
            b.w_scale[p] = scales;
          }
          (from_codes ? kind.multiply : dot_x_bf16_w_bf16_r8_avx512bf16)(b);
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
  constexpr int64_t kBlocks = 8, kStride = kBlocks * 8;
  RowBlocks x(kMaxBlockRows * kStride / 64 + 1), codes(kBlocks);
  for (int64_t i = 0; i < kBlocks * kRowBlockBytes; ++i) codes.data()[i] = std::byte{0x38};  // 1
  for (int64_t i = 0; i < kMaxBlockRows * kStride; i += 2)
    x.data()[i] = std::byte{0x80}, x.data()[i + 1] = std::byte{0x3f};  // 1 in bf16
  codes.data()[3 * kRowBlockBytes + 4 * 5 + 2] = std::byte{0xff};      // output 5
  float sums[3 * kPanelRows];
  DotArgs b{.x = x.data(), .x_stride = kStride, .rows = 3, .panels = 1};
  b.segment_blocks = kBlocks;
  b.overwrite = true;
  b.w[0] = codes.data();
  b.sum[0] = sums;
  dot_x_bf16_w_e4m3_r8_avx512bf16(b);
  for (int i = 0; i < 3 * kPanelRows; ++i) {
    if (i % kPanelRows == 5)
      EXPECT_TRUE(std::isnan(sums[i])) << i;
    else
      EXPECT_EQ(sums[i], 4 * kBlocks) << i;
  }
}

class SkinnyFloats : public DotKernels {};

// Compares a few f32 rows times codes of every kind with sums in double: groups, zero points,
// scales, and the e4m3 codes that are not normal numbers.
TEST_P(SkinnyFloats, FloatRowsMultiplyPackedCodes) {
  const UkernelSet& kernels = *GetParam().kernels;
  const struct {
    DType dtype;
    int bits;
    double (*value)(int code);
  } kinds[] = {
      {DType::kI4, 4, [](int c) { return double{c < 8 ? c : c - 16.0}; }},
      {DType::kI8, 8, [](int c) { return double{c < 128 ? c : c - 256.0}; }},
      {DType::kF8E4M3, 8, [](int c) { return double{e4m3_to_float(static_cast<uint8_t>(c))}; }},
      {DType::kF4E2M1, 4, [](int c) { return double{e2m1_to_float(static_cast<uint8_t>(c))}; }},
  };
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  constexpr int64_t kSegments = 3, kSegmentCols = 48, kCols = kSegments * kSegmentCols,
                    kStride = kCols * 4 + 64;
  const int most_rows = kernels.dot(Operand::kF32, DType::kI4)->rows;
  RowBlocks x(most_rows * kStride / 64 + 1);
  auto x_at = [&](int r, int64_t c) -> float& {
    return *reinterpret_cast<float*>(x.data() + r * kStride + c * 4);
  };
  for (int r = 0; r < most_rows; ++r) {
    for (int64_t c = 0; c < kCols; ++c) x_at(r, c) = normal(random);
  }
  for (const auto& kind : kinds) {
    const bool integer = kind.dtype == DType::kI4 || kind.dtype == DType::kI8;
    const int64_t block_cols = 32 / kind.bits, row_blocks = kCols / block_cols;
    RowBlocks codes[2] = {RowBlocks(row_blocks), RowBlocks(row_blocks)};
    float w_scale[2][kSegments * 16];
    int8_t zero[2][kSegments * 16];
    for (int p = 0; p < 2; ++p) {
      for (int64_t i = 0; i < row_blocks * kRowBlockBytes; ++i) {
        auto byte = static_cast<uint8_t>(random());
        if (kind.dtype == DType::kF8E4M3 && (byte & 0x7f) == 0x7f) byte = 5;
        codes[p].data()[i] = static_cast<std::byte>(byte);
      }
      for (int i = 0; i < kSegments * 16; ++i) {
        w_scale[p][i] = static_cast<float>(random() % 100) / 64;
        zero[p][i] = static_cast<int8_t>(random() % 16);
      }
    }
    auto value = [&](int p, int n, int64_t c) {
      const int64_t at = c / block_cols * kRowBlockBytes + 4 * n + c % 4;
      const auto byte = static_cast<int>(codes[p].data()[at]);
      return kind.value(kind.bits == 8 ? byte : c % 8 < 4 ? byte & 15 : byte >> 4);
    };
    for (int rows = 1; rows <= most_rows; ++rows) {
      for (int panels = 1; panels <= 2; ++panels) {
        const bool zeros = integer && rows % 2 == 0, x_scaled = rows > 2;
        const float x_scales[] = {1, 2, 3, 0.5, 0.25, 4, 5, 6, 7, 1, 2, 3, 4, 0.5, 1, 8, 3, 2};
        ASSERT_GE(std::size(x_scales), static_cast<size_t>(most_rows * kSegments));
        DotArgs b;
        b.x = x.data();
        b.x_stride = kStride;
        b.rows = rows;
        b.panels = panels;
        b.segments = kSegments;
        b.segment_blocks = kSegmentCols / block_cols;
        b.overwrite = panels == 1;
        if (x_scaled) {
          b.x_scale = x_scales;
          b.x_scale_stride = kSegments;
          b.x_scale_step = 1;
        }
        std::vector<float> sums[2];
        for (int p = 0; p < panels; ++p) {
          sums[p].assign(rows * 16, 1.0f);
          b.sum[p] = sums[p].data();
          b.w[p] = codes[p].data();
          b.w_scale[p] = w_scale[p];
          b.w_zero[p] = zeros ? zero[p] : nullptr;
        }
        kernels.dot(Operand::kF32, kind.dtype)->fn(b);
        for (int p = 0; p < panels; ++p) {
          for (int i = 0; i < rows * 16; ++i) {
            const int r = i / 16, n = i % 16;
            double sum = b.overwrite ? 0 : 1, size = 1;
            for (int64_t c = 0; c < kCols; ++c) {
              const int64_t u = c / kSegmentCols;
              const double w = value(p, n, c) - (zeros ? zero[p][u * 16 + n] : 0);
              const double product = w * x_at(r, c) * static_cast<double>(w_scale[p][u * 16 + n]) *
                                     (x_scaled ? x_scales[r * kSegments + u] : 1.0f);
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
TEST_P(SkinnyFloats, FloatRowsKeepNanOfCode) {
  RowBlocks codes(1), x(1);
  const float one = 1;
  for (int c = 0; c < 4; ++c) std::memcpy(x.data() + 4 * c, &one, sizeof one);
  for (int i = 0; i < 64; ++i) codes.data()[i] = static_cast<std::byte>(i == 4 * 3 + 1 ? 0xff : 8);
  float sums[16];
  DotArgs b;
  b.x = x.data();
  b.rows = 1;
  b.panels = 1;
  b.segment_blocks = 1;
  b.overwrite = true;
  b.w[0] = codes.data();
  b.sum[0] = sums;
  GetParam().kernels->dot(Operand::kF32, DType::kF8E4M3)->fn(b);
  for (int n = 0; n < 16; ++n) EXPECT_EQ(std::isnan(sums[n]), n == 3) << n;
}

INSTANTIATE_TEST_SUITE_P(Isa, SkinnyInt8, ::testing::ValuesIn(int8_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Isa, SkinnyFloats, ::testing::ValuesIn(kCases), case_name);

}  // namespace
}  // namespace moracle::cpu::dot_codes_test

#endif
