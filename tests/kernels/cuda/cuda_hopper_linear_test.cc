// Compares linear layers on cuda-sm90 with cuda-reference. Covers few tokens (GEMV), up to 64
// tokens (skinny GEMM), more tokens, both output types, and rows that 16-byte vectors cannot read.
#include <gtest/gtest.h>

#include <cmath>

#include "base/scalar.h"
#include "base/text.h"
#include "conformance/conformance.h"
#include "kernels/cuda/cuda_test.h"
#include "kernels/cuda/planned_tokens.h"
#include "moracle/moe.h"
#include "support/floats.h"
#include "support/must.h"

namespace moracle::cuda_hopper_linear_test {
namespace {

using testing::must;

constexpr int64_t kMostTokens = 300;

struct Size {
  int64_t outputs = 392, columns = 3072;
};

class CudaHopperLinearTest : public CudaTest {
 protected:
  static DescribedMatrix described(const Scheme& scheme, const Size& size) {
    std::vector<CanonicalMatrix> one;
    one.push_back(conformance::random_matrix(
        {.n = size.outputs, .k = size.columns, .key = scheme.weight, .bias = true}, 3));
    return DescribedMatrix::from(scheme, std::move(one));
  }
  static Selection select_row(const Scheme& scheme, const char* row, bool deterministic = false,
                              const Size& size = {}) {
    Request request{.layer = linear_spec("q_proj", described(scheme, size)),
                    .max_num_tokens = kMostTokens,
                    .backend = row,
                    .platform = Platform::kCuda};
    request.deterministic = deterministic;
    return select(request, Machine::here());
  }
  Linear make(const Scheme& scheme, const char* row) {
    return must(Linear::make(described(scheme, size_), select_row(scheme, row, false, size_),
                             std::make_shared<Workspace>(device_)));
  }
  // x begins `offset` elements into memory. Returns y as f32.
  std::vector<float> apply(Linear& linear, int64_t tokens, DType to, int64_t offset = 0) {
    const auto& [outputs, columns] = size_;
    std::mt19937 random(7);
    const std::vector<float> values = testing::normal_floats(random, tokens * columns);
    std::vector<uint16_t> bits(offset, 0x7fc0);
    for (const float value : values) bits.push_back(float_to_bf16(value));
    const Buffer x = upload(bits);
    const Matrix from{x.as<uint16_t>() + offset, DType::kBF16, tokens, columns, columns};
    if (to == DType::kF32) {
      const Buffer y = upload(std::vector<float>(tokens * outputs, NAN));
      must(linear.apply(from, Matrix::f32(y.as<float>(), tokens, outputs)));
      return download<float>(y);
    }
    const Buffer y = upload(std::vector<uint16_t>(tokens * outputs, 0x7fc0));
    must(linear.apply(from, bf16_matrix(y, tokens, outputs)));
    return from_bf16(download<uint16_t>(y));
  }

  Size size_;
};

void expect_near(const std::vector<float>& got, const std::vector<float>& want, float relative) {
  ASSERT_EQ(got.size(), want.size());
  float largest = 0;
  for (const float w : want) largest = std::max(largest, std::fabs(w));
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], relative * largest) << "number " << i;
}

TEST_F(CudaHopperLinearTest, EveryNumberOfTokensGivesResultsOfReference) {
  struct Case {
    const char* name;
    bool skinny;
  };
  for (const auto& [name, skinny] :
       {Case{"bf16", false}, Case{"int4-w4a16-g128", true}, Case{"int4-w4a16-g32-asym", true},
        Case{"int4-w4a16-g128-asym", true}, Case{"int8-w8a8", true}, Case{"fp8-w8a8-channel", true},
        Case{"fp8-w8a8-block128x128", true}, Case{"fp8-w8a16-channel", true},
        Case{"int8-w8a16-channel", true}, Case{"mxfp4-w4a16", false}, Case{"nvfp4-w4a16", false},
        Case{"int8-w8a16-g16-s8-6bit", false}, Case{"int4-w4a16-g16-min-s8", false},
        Case{"int8-w8a16-g32-min", false}, Case{"int4-w4a16-g32", true},
        Case{"int8-w8a16-g32-s16", true}, Case{"int4-w4afp8-g128", true},
        Case{"int4-w4afp8-channel-asym", true}, Case{"mxfp4-w4afp8", false}}) {
    const Scheme scheme = *parse_scheme(name);
    const Selection selection = select_row(scheme, "cuda-sm90");
    if (!selection.plan) GTEST_SKIP() << selection.chosen().error().to_string();
    const KernelPlan& planned = *selection.plan->matrices[0].kernel;
    EXPECT_EQ(cuda::planned_tokens(planned, CudaForm::Kernel::kStreamed, false)->last, 16);
    const auto some = cuda::planned_tokens(planned, CudaForm::Kernel::kSkinny, false);
    EXPECT_EQ(some.has_value(), skinny) << name;
    EXPECT_EQ(cuda::planned_tokens(planned, CudaForm::Kernel::kWgmma, false)->first,
              skinny ? 65 : 17);
    EXPECT_FALSE(planned.deterministic);
    Linear linear = make(scheme, "cuda-sm90"), reference = make(scheme, "cuda-reference");
    for (const int64_t tokens : {1, 2, 8, 9, 16, 17, 32, 45, 64, 65, 300}) {
      SCOPED_TRACE(str(name, ", ", tokens, " tokens"));
      // wgmma adds fp8 products with fewer bits than f32 has.
      const bool fp8_sums = scheme.activation && scheme.activation->dtype == DType::kF8E4M3;
      const float relative = fp8_sums && tokens > (skinny ? 64 : 16) ? 1e-3f : 1e-4f;
      const std::vector<float> want = apply(reference, tokens, DType::kF32);
      expect_near(apply(linear, tokens, DType::kF32), want, relative);
      expect_near(apply(linear, tokens, DType::kBF16), want, 0x1p-7f);
      expect_near(apply(linear, tokens, DType::kF32, 1), want, relative);
    }
  }
}

// Scales are kept as e4m3 numbers times a factor of their row.
TEST_F(CudaHopperLinearTest, ScalesOfNvfp4AreExact) {
  const Scheme scheme = *parse_scheme("nvfp4-w4a16");
  const Selection selection = select_row(scheme, "cuda-sm90");
  if (!selection.plan) GTEST_SKIP() << selection.chosen().error().to_string();
  const auto make_scaled = [&](const char* row, auto scale_of) {
    const Size size;
    std::vector<CanonicalMatrix> one;
    one.push_back(conformance::random_matrix(
        {.n = size.outputs, .k = size.columns, .key = scheme.weight}, 3));
    std::vector<float>& scales = one[0].scales;
    const auto groups = static_cast<size_t>(one[0].scale_cols());
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = scale_of(i / groups, i % groups);
    DescribedMatrix matrix = DescribedMatrix::from(scheme, std::move(one));
    Request request{.layer = linear_spec("q_proj", matrix),
                    .max_num_tokens = kMostTokens,
                    .backend = row,
                    .platform = Platform::kCuda};
    return must(Linear::make(std::move(matrix), select(request, Machine::here()),
                             std::make_shared<Workspace>(device_)));
  };
  struct Case {
    const char* what;
    float relative;
    float (*scale_of)(size_t row, size_t group);
  };
  const Case cases[] = {
      // 0, subnormal numbers and the largest of e4m3; an odd factor for each row.
      {"e4m3", 1e-5f,
       [](size_t row, size_t group) {
         const auto code = static_cast<uint8_t>((row * 131 + group * 37) % 127);
         return e4m3_to_float(code) * (0.7133f + 0.0171f * static_cast<float>(row));
       }},
      {"zeros", 1e-5f, [](size_t row, size_t) { return row % 2 == 0 ? 0.0f : 0.11f; }},
      {"tiny", 1e-5f, [](size_t, size_t group) { return group % 3 == 0 ? 1.5e-19f : 1e-19f; }}};
  for (const Case& one : cases) {
    Linear linear = make_scaled("cuda-sm90", one.scale_of),
           reference = make_scaled("cuda-reference", one.scale_of);
    for (const int64_t tokens : {1, 5, 17, 45, 300}) {
      SCOPED_TRACE(str(one.what, ", ", tokens, " tokens"));
      expect_near(apply(linear, tokens, DType::kF32), apply(reference, tokens, DType::kF32),
                  one.relative);
    }
  }
}

// Shared memory does not hold the sums of all panels of a CTA, so they are added in several rounds.
TEST_F(CudaHopperLinearTest, ManyPanelsOfBlockGiveResultsOfReference) {
  size_ = {24'008, 512};
  for (const char* name : {"int4-w4a16-g128", "int8-w8a8", "fp8-w8a8-block128x128"}) {
    const Scheme scheme = *parse_scheme(name);
    const Selection selection = select_row(scheme, "cuda-sm90", false, size_);
    if (!selection.plan) GTEST_SKIP() << selection.chosen().error().to_string();
    Linear linear = make(scheme, "cuda-sm90"), reference = make(scheme, "cuda-reference");
    for (const int64_t tokens : {1, 4, 8}) {
      SCOPED_TRACE(str(name, ", ", tokens, " tokens"));
      expect_near(apply(linear, tokens, DType::kF32), apply(reference, tokens, DType::kF32), 1e-4f);
    }
  }
}

// The last block has 64 or 32 columns. One size has fewer tiles than SMs, the other more.
TEST_F(CudaHopperLinearTest, BlocksThatEndWithinStageGiveResultsOfReferenceOnWgmma) {
  for (const Size& size : {Size{392, 3008}, Size{24'008, 672}}) {
    size_ = size;
    for (const char* name : {"fp8-w8a8-block128x128", "fp8-w8a8-g128-token"}) {
      const Scheme scheme = *parse_scheme(name);
      const Selection selection = select_row(scheme, "cuda-sm90", false, size_);
      if (!selection.plan) GTEST_SKIP() << selection.chosen().error().to_string();
      EXPECT_TRUE(cuda::planned_tokens(*selection.plan->matrices[0].kernel,
                                       CudaForm::Kernel::kWgmma, false));
      Linear linear = make(scheme, "cuda-sm90"), reference = make(scheme, "cuda-reference");
      for (const int64_t tokens : {1, 16, 17, 64, 300}) {
        SCOPED_TRACE(str(name, ", ", size.columns, " columns, ", tokens, " tokens"));
        const std::vector<float> want = apply(reference, tokens, DType::kF32);
        expect_near(apply(linear, tokens, DType::kF32), want, 1e-3f);
        expect_near(apply(linear, tokens, DType::kBF16), want, 0x1p-7f);
      }
    }
  }
}

// The CTAs of a cluster split K, the last one has fewer columns, and the last tile fewer panels.
TEST_F(CudaHopperLinearTest, SplitColumnsGiveResultsOfReferenceAndTheSameBitsAgain) {
  for (const Size& size : {Size{1'048, 4'128}, Size{5'120, 2'048}, Size{72, 544}}) {
    size_ = size;
    for (const char* name : {"int4-w4a16-g128-asym", "int4-w4a16-g32", "int8-w8a8",
                             "fp8-w8a8-channel", "int8-w8a16-g32"}) {
      const Scheme scheme = *parse_scheme(name);
      const Selection selection = select_row(scheme, "cuda-sm90", false, size_);
      if (!selection.plan) GTEST_SKIP() << selection.chosen().error().to_string();
      Linear linear = make(scheme, "cuda-sm90"), reference = make(scheme, "cuda-reference");
      for (const int64_t tokens : {18, 29, 51}) {
        SCOPED_TRACE(str(name, ", ", size.outputs, " x ", size.columns, ", ", tokens, " tokens"));
        const std::vector<float> got = apply(linear, tokens, DType::kF32);
        expect_near(got, apply(reference, tokens, DType::kF32), 1e-4f);
        EXPECT_EQ(apply(linear, tokens, DType::kF32), got);
      }
    }
  }
}

TEST_F(CudaHopperLinearTest, DeterministicPlansDoNotStreamWeights) {
  const Scheme scheme = *parse_scheme("int4-w4a16-g128");
  const Selection selection = select_row(scheme, "cuda-sm90", true);
  if (!selection.plan) GTEST_SKIP() << selection.chosen().error().to_string();
  const KernelPlan& planned = *selection.plan->matrices[0].kernel;
  EXPECT_FALSE(cuda::planned_tokens(planned, CudaForm::Kernel::kStreamed, false));
  EXPECT_TRUE(planned.deterministic);
}

}  // namespace
}  // namespace moracle::cuda_hopper_linear_test
