// Compares linear layers in block-scaled fp8 on cuda-sm90, whose many tokens cuBLASLt multiplies,
// with cuda-reference. Covers token counts that are no multiple of four, groups and rows that fill
// no block, both output types, replays, and rows that 16-byte vectors cannot read.
#include <gtest/gtest.h>

#include <cmath>

#include "base/text.h"
#include "conformance/conformance.h"
#include "kernels/cuda/cuda_cublaslt_plan.h"
#include "kernels/cuda/cuda_test.h"
#include "kernels/cuda/planned_tokens.h"
#include "kernels/kernel_watch.h"
#include "moracle/moe.h"
#include "support/floats.h"
#include "support/must.h"

namespace moracle::cuda_hopper_blocks_test {
namespace {

using testing::must;

constexpr int64_t kLeast = cuda::kLeastCublasLtBlockTokens, kMostTokens = kLeast + 6;
const Scheme kScheme = *parse_scheme("fp8-w8a8-block128x128");

/// True if cuBLASLt serves some token count of the plan.
bool in_library(const Plan& plan) {
  return cuda::planned_tokens(*plan.matrices[0].kernel, CudaForm::Kernel::kCublasLt, false)
      .has_value();
}

struct Sizes {
  int64_t n, k;
};

class CudaHopperBlocksTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    const Selection selection = select_row({256, 256}, "cuda-sm90");
    if (!selection.plan) GTEST_SKIP() << selection.chosen().error().to_string();
    if (!in_library(*selection.plan)) GTEST_SKIP() << "needs cuBLASLt 12.9";
  }
  static DescribedMatrix described(Sizes sizes, bool bias = false, uint64_t seed = 3) {
    std::vector<CanonicalMatrix> one;
    one.push_back(conformance::random_matrix(
        {.n = sizes.n, .k = sizes.k, .key = kScheme.weight, .bias = bias}, seed));
    return DescribedMatrix::from(kScheme, std::move(one));
  }
  static Selection select_row(Sizes sizes, const char* row, bool bias = false) {
    return select({.layer = linear_spec("q_proj", described(sizes, bias)),
                   .max_num_tokens = kMostTokens,
                   .backend = row,
                   .platform = Platform::kCuda},
                  Machine::here());
  }
  Linear make(Sizes sizes, const char* row) {
    return must(Linear::make(described(sizes), select_row(sizes, row),
                             std::make_shared<Workspace>(device_)));
  }
  Buffer inputs(int64_t tokens, int64_t k, int64_t offset) {
    std::mt19937 random(7);
    std::vector<uint16_t> bits(offset, 0x7fc0);
    for (const float value : testing::normal_floats(random, tokens * k))
      bits.push_back(float_to_bf16(value));
    return upload(bits);
  }
  // x begins `offset` elements into memory. Returns y as f32.
  std::vector<float> apply(Linear& linear, Sizes sizes, int64_t tokens, DType to,
                           int64_t offset = 0) {
    const Buffer x = inputs(tokens, sizes.k, offset);
    const Matrix from{x.as<uint16_t>() + offset, DType::kBF16, tokens, sizes.k, sizes.k};
    if (to == DType::kF32) {
      const Buffer y = upload(std::vector<float>(tokens * sizes.n, NAN));
      must(linear.apply(from, Matrix::f32(y.as<float>(), tokens, sizes.n)));
      return download<float>(y);
    }
    const Buffer y = upload(std::vector<uint16_t>(tokens * sizes.n, 0x7fc0));
    must(linear.apply(from, bf16_matrix(y, tokens, sizes.n)));
    return from_bf16(download<uint16_t>(y));
  }
};

void expect_near(const std::vector<float>& got, const std::vector<float>& want, float relative) {
  ASSERT_EQ(got.size(), want.size());
  float largest = 0;
  for (const float w : want) largest = std::max(largest, std::fabs(w));
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], relative * largest) << "number " << i;
}

TEST_F(CudaHopperBlocksTest, ManyTokensGiveResultsOfReference) {
  // Five groups and 3.5 blocks of rows; then whole blocks.
  for (const Sizes sizes : {Sizes{448, 640}, Sizes{256, 1024}}) {
    Linear linear = make(sizes, "cuda-sm90"), reference = make(sizes, "cuda-reference");
    for (const int64_t tokens : {kLeast - 1, kLeast, kLeast + 1, kLeast + 3, kLeast + 6}) {
      SCOPED_TRACE(str(sizes.n, " x ", sizes.k, ", ", tokens, " tokens"));
      const std::vector<float> want = apply(reference, sizes, tokens, DType::kF32);
      expect_near(apply(linear, sizes, tokens, DType::kF32), want, 1e-3f);
      expect_near(apply(linear, sizes, tokens, DType::kBF16), want, 0x1p-7f);
      expect_near(apply(linear, sizes, tokens, DType::kF32, 1), want, 1e-3f);
    }
  }
}

TEST_F(CudaHopperBlocksTest, KernelsAreThoseOfThePlan) {
  const Sizes sizes{256, 1024};
  Linear linear = make(sizes, "cuda-sm90");
  for (const int64_t tokens : {kLeast - 1, kLeast}) {
    std::vector<std::string> names;
    watch_kernels([&](const KernelRun& run) { names.push_back(run.name); });
    apply(linear, sizes, tokens, DType::kBF16);
    watch_kernels(nullptr);
    ASSERT_EQ(names.size(), 1u) << tokens;
    EXPECT_EQ(names[0] == name(cuda::kCublasLtBlocksForm), tokens == kLeast) << names[0];
  }
}

TEST_F(CudaHopperBlocksTest, CallsOfDifferentSizesShareTheirMemory) {
  const Sizes small{256, 640}, large{768, 1024};
  Linear first = make(small, "cuda-sm90"), second = make(large, "cuda-sm90");
  const std::vector<float> one = apply(first, small, kLeast + 1, DType::kF32);
  const std::vector<float> two = apply(second, large, kLeast + 1, DType::kF32);
  EXPECT_EQ(apply(first, small, kLeast + 1, DType::kF32), one);
  EXPECT_EQ(apply(second, large, kLeast + 1, DType::kF32), two);
}

// Recording works as the first call for a number of rows.
TEST_F(CudaHopperBlocksTest, ReplaysGiveBitsOfCalls) {
  const Sizes sizes{256, 1024};
  const int64_t tokens = kLeast + 1;
  Linear linear = make(sizes, "cuda-sm90");
  const Buffer x = inputs(tokens, sizes.k, 0);
  const Buffer y = upload(std::vector<uint16_t>(tokens * sizes.n, 0x7fc0));
  const auto enqueue = [&] {
    return linear.apply(bf16_matrix(x, tokens, sizes.k), bf16_matrix(y, tokens, sizes.n));
  };
  const auto graph = must(device_->record(enqueue));
  ASSERT_NE(graph, nullptr);
  must(graph->replay());
  const std::vector<uint16_t> replayed = download<uint16_t>(y);
  must(enqueue());
  EXPECT_EQ(download<uint16_t>(y), replayed);
}

TEST_F(CudaHopperBlocksTest, ReloadMatchesColdLoad) {
  const Sizes sizes{256, 640};
  Linear linear = make(sizes, "cuda-sm90");
  Linear cold = must(Linear::make(described(sizes, false, 4), select_row(sizes, "cuda-sm90"),
                                  std::make_shared<Workspace>(device_)));
  must(linear.swap(must(linear.pack(described(sizes, false, 4)))));
  EXPECT_EQ(apply(linear, sizes, kLeast, DType::kF32), apply(cold, sizes, kLeast, DType::kF32));
}

TEST_F(CudaHopperBlocksTest, LayersWithBiasRunOnWgmma) {
  const Selection selection = select_row({256, 256}, "cuda-sm90", true);
  EXPECT_FALSE(in_library(*selection.plan));
}

}  // namespace
}  // namespace moracle::cuda_hopper_blocks_test
