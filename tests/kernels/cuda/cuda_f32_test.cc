// Tests linear layers on backend cuda-f32 against cuda-reference: both kernels, biases, output
// types, strides, and rows beside other rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/text.h"
#include "conformance/conformance.h"
#include "kernels/cuda/cuda_f32_plan.h"
#include "kernels/cuda/cuda_test.h"
#include "kernels/kernel_watch.h"
#include "moracle/moe.h"
#include "support/floats.h"
#include "support/must.h"

namespace moracle::cuda_f32_test {
namespace {

using testing::must;

constexpr int64_t kMostTokens = 520;

class CudaF32Test : public CudaTest {
 protected:
  static DescribedMatrix described(const MatrixShape& shape) {
    std::vector<CanonicalMatrix> one;
    one.push_back(conformance::random_matrix(shape, 3));
    return DescribedMatrix::from({kF32Weight, {}}, std::move(one));
  }
  Linear make(const char* row, const MatrixShape& shape, bool deterministic = false) {
    Request request{.layer = linear_spec("router", described(shape)),
                    .max_num_tokens = kMostTokens,
                    .backend = row,
                    .platform = Platform::kCuda};
    request.deterministic = deterministic;
    return must(Linear::make(described(shape), select(request, Machine::here()),
                             std::make_shared<Workspace>(device_)));
  }
  /// The first `tokens` of the same rows. They lie `stride` elements apart, and begin `offset`
  /// elements into memory; NaN lies between them.
  std::vector<float> apply(Linear& linear, const MatrixShape& shape, int64_t tokens,
                           DType to = DType::kF32, int64_t stride = 0, int64_t offset = 0) {
    stride = std::max(stride, shape.k);
    std::mt19937 random(7);
    const std::vector<float> values = testing::normal_floats(random, tokens * shape.k);
    std::vector<uint16_t> bits(offset + tokens * stride, 0x7fc0);
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t c = 0; c < shape.k; ++c)
        bits[offset + t * stride + c] = float_to_bf16(values[t * shape.k + c]);
    const Buffer x = upload(bits);
    const Matrix from{x.as<uint16_t>() + offset, DType::kBF16, tokens, shape.k, stride};
    if (to == DType::kF32) {
      const Buffer y = upload(std::vector<float>(tokens * shape.n, NAN));
      must(linear.apply(from, Matrix::f32(y.as<float>(), tokens, shape.n)));
      return download<float>(y);
    }
    const Buffer y = upload(std::vector<uint16_t>(tokens * shape.n, 0x7fc0));
    must(linear.apply(from, bf16_matrix(y, tokens, shape.n)));
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

// One output; less than a tile; remainders of tiles, chunks and vectors; several loads of a thread.
const MatrixShape kShapes[] = {{.n = 1, .k = 1, .key = kF32Weight},
                               {.n = 1, .k = 2048, .key = kF32Weight},
                               {.n = 33, .k = 77, .key = kF32Weight, .bias = true},
                               {.n = 128, .k = 2048, .key = kF32Weight},
                               {.n = 40, .k = 4104, .key = kF32Weight, .bias = true}};

TEST_F(CudaF32Test, MatchesReferenceForEveryNumberOfRows) {
  for (const MatrixShape& shape : kShapes) {
    Linear reference = make("cuda-reference", shape), linear = make("cuda-f32", shape);
    for (const int64_t tokens : {1, 2, 3, 4, 7, 8, 9, 16, 17, 100, 512}) {
      SCOPED_TRACE(str(shape.n, " x ", shape.k, ", ", tokens, " tokens"));
      const std::vector<float> want = apply(reference, shape, tokens);
      expect_near(apply(linear, shape, tokens), want, 1e-5f);
      expect_near(apply(linear, shape, tokens, DType::kBF16), want, 0x1p-8f);
      expect_near(apply(linear, shape, tokens, DType::kF32, shape.k + 8), want, 1e-5f);
      expect_near(apply(linear, shape, tokens, DType::kF32, shape.k + 3, 1), want, 1e-5f);
    }
  }
}

// Few rows run in the GEMV, more rows in tiles. Deterministic plans use only tiles.
TEST_F(CudaF32Test, RowHasSameBitsBesideOtherRows) {
  for (const MatrixShape& shape : kShapes) {
    for (const bool deterministic : {false, true}) {
      Linear linear = make("cuda-f32", shape, deterministic);
      EXPECT_EQ(linear.plan().matrices[0].kernels.size(), deterministic ? 1u : 2u);
      const int64_t gemv = deterministic ? 0 : cuda::kDenseGemvF32Rows;
      const std::vector<float> many = apply(linear, shape, kMostTokens),
                               most_gemv = gemv > 0 ? apply(linear, shape, gemv) : many;
      for (const int64_t tokens : {1, 2, 5, 8, 9, 33}) {
        SCOPED_TRACE(str(shape.n, " x ", shape.k, ", ", tokens, " tokens"));
        const std::vector<float> got = apply(linear, shape, tokens);
        const std::vector<float>& want = tokens <= gemv ? most_gemv : many;
        EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin()));
      }
    }
  }
}

}  // namespace
}  // namespace moracle::cuda_f32_test
