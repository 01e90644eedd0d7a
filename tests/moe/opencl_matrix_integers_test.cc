// Tests that matrix engines add integer codes exactly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "conformance/conformance.h"
#include "kernels/one_device_test.h"
#include "kernels/opencl/matrix/opencl_matrix_plan.h"
#include "moe/emulated_engines.h"
#include "moracle/moe.h"
#include "support/must.h"

namespace moracle::opencl_matrix_integers_test {
namespace {

class OpenClMatrixIntegers : public OneDeviceTest {
 protected:
  OpenClMatrixIntegers() : OneDeviceTest("opencl") {}
};

/// One expert with rows of weights whose second half cancels the first, except for a little: f32
/// sums would round. `zero` is the zero point of every row, if the weights have one.
DescribedWeights cancelling_expert(const LayerSpec& spec, int8_t zero) {
  std::mt19937 random(3);
  const auto matrix = [&](const MatrixShape& shape) {
    CanonicalMatrix m = conformance::random_matrix(shape, 1);
    for (int64_t r = 0; r < shape.n; ++r) {
      const auto codes = reinterpret_cast<int8_t*>(m.storage.data()) + r * m.row_bytes();
      for (int64_t c = 0; c < shape.k / 2; ++c) {
        codes[c] = static_cast<int8_t>(80 + random() % 30);
        codes[c + shape.k / 2] = static_cast<int8_t>(2 * zero - codes[c] + random() % 3 - 1);
      }
    }
    std::fill(m.zero_points.begin(), m.zero_points.end(), zero);
    return m;
  };
  const std::vector<MatrixShape> shapes = spec.matrices();
  std::vector<CanonicalMatrix> w13, w2;
  w13.push_back(matrix(shapes[0]));
  w2.push_back(matrix(shapes[1]));
  return {spec, DescribedMatrix::from(spec.scheme, std::move(w13)),
          DescribedMatrix::from(spec.scheme, std::move(w2))};
}

// Partial sums exceed 2^24. opencl-lines adds the same integers and scales them in the same order.
TEST_F(OpenClMatrixIntegers, AddsWithoutRounding) {
  const Machine machine = testing::machine_with_engines();
  if (const std::string reason = testing::lacks_for_engines(machine); !reason.empty())
    GTEST_SKIP() << reason;
  QuantKey with_zeros = kInt8StaticChannelSym;
  with_zeros.symmetric = false;
  for (const auto& [weight, zero] :
       {std::pair<QuantKey, int8_t>{kInt8StaticChannelSym, 0}, {with_zeros, -7}}) {
    const LayerSpec spec{.name = "experts",
                         .num_experts = 1,
                         .hidden_size = 16384,
                         .intermediate_size = 32,
                         .top_k = 1,
                         .scheme = {weight, kInt8DynamicTokenSym}};
    constexpr int64_t kTokens = 3;
    std::vector<float> hidden;
    std::mt19937 random(4);
    for (int64_t t = 0; t < kTokens; ++t) {
      std::vector<float> half;
      for (int64_t c = 0; c < spec.hidden_size / 2; ++c)
        half.push_back(0.75f + static_cast<float>(random() % 1000) / 4000);
      for (int copies = 0; copies < 2; ++copies)
        hidden.insert(hidden.end(), half.begin(), half.end());
    }
    const auto output_on = [&](const char* row) {
      const Selection selection =
          select({.layer = spec, .max_num_tokens = kTokens, .backend = row}, machine);
      FusedMoe moe =
          testing::must(FusedMoe::make(cancelling_expert(spec, zero), selection, device_));
      EXPECT_THAT(moe.plan().matrices[0].kernel.kernels[0].name,
                  ::testing::HasSubstr("exact sums"));
      const Buffer x = upload(hidden), ids = upload(std::vector<int32_t>(kTokens, 0)),
                   weights = upload(std::vector<float>(kTokens, 1)),
                   y = allocate(hidden.size() * sizeof(float));
      expect_done(moe.apply(Matrix::f32(x.as<float>(), kTokens, spec.hidden_size),
                            {ids.as<int32_t>()}, {weights.as<float>()},
                            Matrix::f32(y.as<float>(), kTokens, spec.hidden_size)));
      return download<float>(y);
    };
    const std::vector<float> want = output_on("opencl-lines");
    for (const int lanes : {8, 16}) {
      opencl::emulate_matrix_engines(lanes);
      EXPECT_EQ(output_on("opencl-matrix-wide"), want) << name(spec.scheme) << ", " << lanes;
    }
  }
}

}  // namespace
}  // namespace moracle::opencl_matrix_integers_test
