// Compares linear layers on cuda-sm90 with cuda-reference. Covers few tokens (GEMV), more tokens,
// both output types, and rows that 16-byte vectors cannot read.
#include <gtest/gtest.h>

#include <cmath>

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
  for (const char* name :
       {"bf16", "int4-w4a16-g128", "int4-w4a16-g32-asym", "int8-w8a8", "fp8-w8a8-channel",
        "fp8-w8a8-block128x128", "mxfp4-w4a16", "nvfp4-w4a16", "int8-w8a16-g16-s8-6bit",
        "int4-w4a16-g16-min-s8", "int8-w8a16-g32-min", "int4-w4a16-g32", "int8-w8a16-g32-s16",
        "int4-w4afp8-g128", "int4-w4afp8-channel-asym", "mxfp4-w4afp8"}) {
    const Scheme scheme = *parse_scheme(name);
    const Selection selection = select_row(scheme, "cuda-sm90");
    if (!selection.plan) GTEST_SKIP() << selection.chosen().error().to_string();
    const KernelPlan& planned = *selection.plan->matrices[0].kernel;
    EXPECT_EQ(cuda::planned_tokens(planned, CudaForm::Kernel::kStreamed, false)->last, 16);
    EXPECT_EQ(cuda::planned_tokens(planned, CudaForm::Kernel::kWgmma, false)->first, 17);
    EXPECT_FALSE(planned.deterministic);
    Linear linear = make(scheme, "cuda-sm90"), reference = make(scheme, "cuda-reference");
    for (const int64_t tokens : {1, 2, 8, 9, 16, 17, 64, 300}) {
      SCOPED_TRACE(str(name, ", ", tokens, " tokens"));
      // wgmma adds fp8 products with fewer bits than f32 has.
      const bool fp8_sums = scheme.activation && scheme.activation->dtype == DType::kF8E4M3;
      const float relative = fp8_sums && tokens > 16 ? 1e-3f : 1e-4f;
      const std::vector<float> want = apply(reference, tokens, DType::kF32);
      expect_near(apply(linear, tokens, DType::kF32), want, relative);
      expect_near(apply(linear, tokens, DType::kBF16), want, 0x1p-7f);
      expect_near(apply(linear, tokens, DType::kF32, 1), want, relative);
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
