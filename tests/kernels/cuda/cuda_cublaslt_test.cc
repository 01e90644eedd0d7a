// Tests linear layers on backend cuda-cublaslt against cuda-reference: both kernels, biases, both
// output types, strides, graphs and reloads.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/text.h"
#include "conformance/conformance.h"
#include "kernels/cuda/cuda_cublaslt_plan.h"
#include "kernels/cuda/cuda_test.h"
#include "kernels/cuda/gemv/gemv_plan.h"
#include "kernels/kernel_watch.h"
#include "moracle/moe.h"
#include "support/floats.h"
#include "support/must.h"

namespace moracle::cuda_cublaslt_test {
namespace {

using testing::must;

constexpr int64_t kMostTokens = 300;
const Scheme kScheme{kBF16Weight, {}};

class CudaCublasLtTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    const Selection selection = select_row("cuda-cublaslt", {.n = 16, .k = 16, .key = kBF16Weight});
    if (!selection.plan) GTEST_SKIP() << selection.chosen().error().to_string();
  }

  static DescribedMatrix described(const MatrixShape& shape, uint64_t seed) {
    std::vector<CanonicalMatrix> one;
    one.push_back(conformance::random_matrix(shape, seed));
    return DescribedMatrix::from(kScheme, std::move(one));
  }
  static Selection select_row(const char* row, const MatrixShape& shape) {
    return select({.layer = linear_spec("q_proj", described(shape, 1)),
                   .max_num_tokens = kMostTokens,
                   .backend = row,
                   .platform = Platform::kCuda},
                  Machine::here());
  }
  Linear make(const char* row, const MatrixShape& shape, uint64_t seed) {
    return must(Linear::make(described(shape, seed), select_row(row, shape),
                             std::make_shared<Workspace>(device_)));
  }

  /// bf16 activations [tokens, k] whose rows lie `stride` apart, `offset` elements into memory.
  Buffer inputs(int64_t tokens, int64_t k, int64_t stride, int64_t offset, uint32_t seed) {
    std::mt19937 random(seed);
    const std::vector<float> values = testing::normal_floats(random, tokens * k);
    std::vector<uint16_t> bits(offset + tokens * stride, 0x7fc0);  // NaN beside the rows
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t c = 0; c < k; ++c)
        bits[offset + t * stride + c] = float_to_bf16(values[t * k + c]);
    return upload(bits);
  }

  struct Call {
    int64_t tokens;
    DType y = DType::kF32;
    int64_t stride = 0;  ///< of x; 0: k
    int64_t offset = 0;  ///< of x, in elements
  };
  std::vector<float> apply(Linear& linear, const MatrixShape& shape, const Call& call) {
    const int64_t stride = std::max(call.stride, shape.k);
    const Buffer x = inputs(call.tokens, shape.k, stride, call.offset, 7);
    const Matrix from{x.as<uint16_t>() + call.offset, DType::kBF16, call.tokens, shape.k, stride};
    if (call.y == DType::kF32) {
      const Buffer y = upload(std::vector<float>(call.tokens * shape.n, NAN));
      must(linear.apply(from, Matrix::f32(y.as<float>(), call.tokens, shape.n)));
      return download<float>(y);
    }
    const Buffer y = upload(std::vector<uint16_t>(call.tokens * shape.n, 0x7fc0));
    must(linear.apply(from, bf16_matrix(y, call.tokens, shape.n)));
    return from_bf16(download<uint16_t>(y));
  }

  static void expect_near(const std::vector<float>& got, const std::vector<float>& want,
                          float relative) {
    ASSERT_EQ(got.size(), want.size());
    float largest = 0;
    for (const float w : want) largest = std::max(largest, std::fabs(w));
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], relative * largest) << "number " << i;
  }
};

// Sizes of one CTA and of several; columns for one step of loads and for several; remainders.
const MatrixShape kShapes[] = {{.n = 8, .k = 8, .key = kBF16Weight},
                               {.n = 40, .k = 2056, .key = kBF16Weight, .bias = true},
                               {.n = 128, .k = 512, .key = kBF16Weight},
                               {.n = 264, .k = 72, .key = kBF16Weight, .bias = true},
                               {.n = 2056, .k = 136, .key = kBF16Weight, .bias = true},
                               {.n = 136, .k = 6408, .key = kBF16Weight, .bias = true}};

TEST_F(CudaCublasLtTest, MatchesReferenceForEveryNumberOfRows) {
  for (const MatrixShape& shape : kShapes) {
    Linear reference = make("cuda-reference", shape, 3), linear = make("cuda-cublaslt", shape, 3);
    for (const int64_t tokens : {1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 129, 300}) {
      SCOPED_TRACE(str(shape.n, " x ", shape.k, ", ", tokens, " tokens"));
      const std::vector<float> want = apply(reference, shape, {tokens});
      expect_near(apply(linear, shape, {tokens}), want, 3e-5f);
      // The sum and, in cuBLASLt, the bias are rounded to bf16, which has 8 significant bits.
      expect_near(apply(linear, shape, {tokens, DType::kBF16}), want, 0x1p-7f);
      EXPECT_EQ(apply(linear, shape, {tokens}), apply(linear, shape, {tokens}));
    }
  }
}

TEST_F(CudaCublasLtTest, AcceptsAnyStrideAndAlignmentOfRows) {
  const MatrixShape& shape = kShapes[1];
  Linear linear = make("cuda-cublaslt", shape, 3);
  for (const int64_t tokens : {5, 16, 40}) {
    const std::vector<float> want = apply(linear, shape, {tokens});
    for (const Call& call :
         {Call{tokens, DType::kF32, shape.k + 8}, Call{tokens, DType::kF32, shape.k + 1, 1},
          Call{tokens, DType::kF32, shape.k, 3}}) {
      SCOPED_TRACE(str(tokens, " tokens, stride ", call.stride, ", offset ", call.offset));
      expect_near(apply(linear, shape, call), want, 3e-5f);
    }
  }
}

TEST_F(CudaCublasLtTest, GemvGivesSameBitsInAnyBatch) {
  const MatrixShape& shape = kShapes[1];
  Linear linear = make("cuda-cublaslt", shape, 3);
  const std::vector<float> all = apply(linear, shape, {cuda::kDenseGemvRows});
  for (int64_t tokens = 1; tokens < cuda::kDenseGemvRows; ++tokens) {
    const std::vector<float> some = apply(linear, shape, {tokens});
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << tokens;
  }
}

TEST_F(CudaCublasLtTest, RunsPlannedKernels) {
  for (const MatrixShape& shape : {kShapes[2], kShapes[4]}) {  // few outputs, many outputs
    Linear linear = make("cuda-cublaslt", shape, 3);
    for (const int64_t tokens :
         {int64_t{1}, cuda::kDenseGemvRows, cuda::kDenseGemvRows + 1, kMostTokens}) {
      std::vector<std::string> names;
      watch_kernels([&](const KernelRun& run) { names.push_back(run.name); });
      apply(linear, shape, {tokens});
      watch_kernels(nullptr);
      const auto& kernels = linear.plan().matrices[0].kernels;
      const auto planned = std::find_if(kernels.begin(), kernels.end(), [&](const KernelUse& use) {
        return use.range.may_run(tokens, tokens);
      });
      ASSERT_NE(planned, kernels.end());
      EXPECT_THAT(names, ::testing::ElementsAre(planned->name)) << shape.n << ", " << tokens;
    }
  }
}

// Recording works as the first call for a number of rows.
TEST_F(CudaCublasLtTest, ReplaysGiveBitsOfCalls) {
  const MatrixShape& shape = kShapes[1];
  for (const int64_t tokens : {int64_t{4}, int64_t{100}}) {
    Linear linear = make("cuda-cublaslt", shape, 3);
    const Buffer x = inputs(tokens, shape.k, shape.k, 0, 7);
    const Buffer y = upload(std::vector<uint16_t>(tokens * shape.n, 0x7fc0));
    const auto enqueue = [&] {
      return linear.apply(bf16_matrix(x, tokens, shape.k), bf16_matrix(y, tokens, shape.n));
    };
    const auto graph = must(device_->record(enqueue));
    ASSERT_NE(graph, nullptr);
    must(graph->replay());
    const std::vector<uint16_t> replayed = download<uint16_t>(y);
    must(enqueue());
    EXPECT_EQ(download<uint16_t>(y), replayed);
  }
}

TEST_F(CudaCublasLtTest, ReloadMatchesColdLoad) {
  const MatrixShape& shape = kShapes[1];
  Linear linear = make("cuda-cublaslt", shape, 1), cold = make("cuda-cublaslt", shape, 2);
  must(linear.swap(must(linear.pack(described(shape, 2)))));
  for (const int64_t tokens : {4, 100})
    for (const DType y : {DType::kF32, DType::kBF16})
      EXPECT_EQ(apply(linear, shape, {tokens, y}), apply(cold, shape, {tokens, y})) << tokens;
}

}  // namespace
}  // namespace moracle::cuda_cublaslt_test
