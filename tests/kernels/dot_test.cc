// Compares micro-kernels for every row count with the same sums in plain code, including scales,
// zero points and the epilogue.
#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "kernels/ukernel_cases.h"

#if defined(__x86_64__)

namespace moracle::cpu::dot_test {
namespace {

TEST_P(DotKernels, MatchScaledDotProductsForEveryRowCount) {
  std::mt19937 random(7);
  auto small = [&](int most) { return static_cast<int>(random() % (2 * most + 1)) - most; };
  const int64_t cols = kNumBlocks * columns_per_block();
  const bool integers = GetParam().arithmetic == Operand::kInt8;
  const int64_t stride = kNumBlocks * 4 + 64;
  RowBlocks w[2] = {RowBlocks(kNumBlocks), RowBlocks(kNumBlocks)},
            x((kMaxBlockRows + 2) * stride / 64);
  std::vector<int> weights[2], rows((kMaxBlockRows + 2) * cols);
  for (int p = 0; p < 2; ++p) {
    weights[p].resize(16 * cols);
    for (int64_t c = 0; c < cols; ++c) {
      for (int n = 0; n < 16; ++n) {
        weights[p][n * cols + c] = integers && c == 3 ? -128 : small(9);
        put(w[p].data() + c / columns_per_block() * 64,
            n * columns_per_block() + c % columns_per_block(), weights[p][n * cols + c]);
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
  std::vector<int32_t> segment_sums(kMaxBlockRows * 4);
  for (int r = 0; r < kMaxBlockRows; ++r) {
    for (int64_t c = 0; c < cols; ++c) segment_sums[r * 4 + c / (cols / 4)] += rows[r * cols + c];
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
        // Without scales the number of segments does not change the result: cover several segments
        // with two halves of a tile, too.
        const int segments = !scaled && count % 3 == 0 ? 4 : 1;
        std::vector<float> sums[2];
        DotArgs block{.x = x.data(), .x_stride = stride, .rows = count, .panels = panels};
        block.segments = segments;
        block.segment_blocks = kNumBlocks / segments;
        block.x_sum = segments == 1 ? x_sums.data() : segment_sums.data();
        block.x_sum_stride = segments;
        for (int p = 0; p < panels; ++p) {
          sums[p].assign(count * 16 + 1, 5.0f);
          block.w[p] = w[p].data();
          block.sum[p] = sums[p].data();
          block.w_scale[p] = scaled ? w_scales[p] : nullptr;
          block.w_zero[p] = scaled && integers ? zeros[p] : nullptr;
        }
        if (scaled) block.x_scale = x_scales, block.x_scale_stride = 1;
        // The second term of each value comes from the row two further on, if it exists.
        const bool parts = GetParam().arithmetic == Operand::kBf16 && scaled && in_limbs_;
        if (parts) block.x_low = 2 * stride;
        // Some blocks are the end of a row tile whose other blocks are whole.
        block.most_rows = count % 3 == 0 ? kMaxBlockRows : count;
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

class Int8Blocks : public DotKernels {};

// No saturation: every code times every code, four times in a sum.
TEST_P(Int8Blocks, ExactForEveryPairOfCodes) {
  RowBlocks w(16), x(kMaxBlockRows);
  std::vector<float> sums(kMaxBlockRows * 16);
  std::vector<int32_t> x_sums(kMaxBlockRows);
  for (int first_w = -128; first_w < 128; first_w += 16) {
    for (int row_block = 0; row_block < 16; ++row_block) {
      for (int i = 0; i < 64; ++i)
        w.data()[row_block * 64 + i] = static_cast<std::byte>(first_w + i / 4);
    }
    for (int first_x = -128; first_x < 128; first_x += kMaxBlockRows) {
      for (int r = 0; r < kMaxBlockRows; ++r) {
        const int value = std::max(first_x + r, least_x_);
        std::memset(x.data() + r * 64, value, 64);
        x_sums[r] = 64 * value;
      }
      DotArgs b{.x = x.data(), .x_stride = 64, .rows = kMaxBlockRows, .panels = 1};
      b.segment_blocks = 16;
      b.overwrite = true;
      b.w[0] = w.data();
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

// All row counts per call give the same result, and so do all instruction sets with a fused
// multiply-add.
TEST(UkernelSet, EveryInstructionSetGivesSameBitsForIntegersAndF32) {
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  constexpr int64_t kSegments = 3, kBlocks = 16 * kSegments, kStride = kBlocks * 4 + 64;
  for (const Operand arithmetic : {Operand::kInt8, Operand::kF32}) {
    const bool integers = arithmetic == Operand::kInt8;
    RowBlocks w[2] = {RowBlocks(kBlocks), RowBlocks(kBlocks)}, x(kMaxBlockRows * kStride / 64);
    std::vector<int32_t> x_sums(kMaxBlockRows * kSegments);
    for (int r = 0; r < kMaxBlockRows; ++r) {
      for (int64_t i = 0; i < kBlocks; ++i) {
        const float value = normal(random);
        std::memcpy(x.data() + r * kStride + i * 4, &value, sizeof value);
        for (int c = 0; integers && c < 4; ++c) {
          const int code = static_cast<int>(random() % 255) - 127;
          x.data()[r * kStride + i * 4 + c] = static_cast<std::byte>(code);
          x_sums[r * kSegments + i / 16] += code;
        }
      }
    }
    float scales[2][kSegments * 16], x_scales[kMaxBlockRows * kSegments];
    int8_t zeros[2][kSegments * 16];
    for (float& scale : x_scales) scale = std::abs(normal(random));
    for (int p = 0; p < 2; ++p) {
      for (float& scale : scales[p]) scale = std::abs(normal(random));
      for (int8_t& zero : zeros[p]) zero = static_cast<int8_t>(random());
      for (int64_t i = 0; i < kBlocks * 16; ++i) {
        const float value = normal(random);
        const auto codes = static_cast<uint32_t>(random());
        std::memcpy(w[p].data() + 4 * i, integers ? static_cast<const void*>(&codes) : &value, 4);
      }
    }
    auto result = [&](const UkernelSet& k, int rows, int panels, bool with_zeros) {
      std::vector<float> sums(2 * kMaxBlockRows * 16, 0.5f);
      if (k.begin != nullptr) k.begin();
      for (int row = 0; row < kMaxBlockRows; row += rows) {
        DotArgs b{.x = x.data() + row * kStride, .x_stride = kStride};
        b.rows = std::min(rows, kMaxBlockRows - row);
        b.panels = panels;
        b.segments = kSegments;
        b.segment_blocks = 16;
        b.x_scale = x_scales + row * kSegments;
        b.x_scale_stride = kSegments;
        b.x_scale_step = 1;
        b.x_sum = x_sums.data() + row * kSegments;
        b.x_sum_stride = kSegments;
        for (int p = 0; p < panels; ++p) {
          b.sum[p] = sums.data() + (p * kMaxBlockRows + row) * 16;
          b.w[p] = w[p].data();
          b.w_scale[p] = scales[p];
          b.w_zero[p] = with_zeros && integers ? zeros[p] : nullptr;
        }
        k.dot(arithmetic, *operand_dtype(arithmetic))->fn(b);
      }
      if (k.end != nullptr) k.end();
      return sums;
    };
    for (const bool with_zeros : {false, true}) {
      std::optional<std::vector<float>> first[2][2];
      for (const KernelCase& c : kCases) {
        if (c.arithmetic != arithmetic || !has(c.needs)) continue;
        for (int panels = 1; panels <= 2; ++panels) {
          for (const int rows : {1, 2, 3, 4, 5, 6, 7, 9, 17, 32}) {
            const std::vector<float> got = result(*c.kernels, rows, panels, with_zeros);
            std::optional<std::vector<float>>& want =
                first[c.kernels == &ukernels(DotIsa::kPortable)][panels - 1];
            if (!want) want = got;
            ASSERT_EQ(got, *want) << c.name << ", " << rows << " rows at once";
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Int8Blocks, ::testing::ValuesIn(int8_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Isa, DotKernels, ::testing::ValuesIn(kCases), case_name);

}  // namespace
}  // namespace moracle::cpu::dot_test

#endif
