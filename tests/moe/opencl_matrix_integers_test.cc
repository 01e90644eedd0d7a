// Tests that matrix engines add integer codes exactly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "conformance/conformance.h"
#include "kernels/one_device_test.h"
#include "kernels/opencl/matrix/opencl_matrix_plan.h"
#include "moe/emulated_engines.h"
#include "moracle/moe.h"
#include "support/floats.h"
#include "support/must.h"

namespace moracle::opencl_matrix_integers_test {
namespace {

using ::testing::HasSubstr;
using testing::must;

constexpr int64_t kRows = 24, kCols = 16384, kTokens = 3;

class OpenClMatrixIntegers : public OneDeviceTest {
 protected:
  OpenClMatrixIntegers() : OneDeviceTest("opencl") {}

  /// The second half of each row of weights cancels the first, except for a little. `zero` is the
  /// zero point of every row, if the weights have one.
  static DescribedMatrix cancelling(const Scheme& scheme, int8_t zero) {
    std::mt19937 random(3);
    std::vector<CanonicalMatrix> one;
    one.push_back(conformance::random_matrix({.n = kRows, .k = kCols, .key = scheme.weight}, 1));
    CanonicalMatrix& m = one[0];
    for (int64_t r = 0; r < kRows; ++r) {
      auto* const codes = reinterpret_cast<int8_t*>(m.storage.data()) + r * m.row_bytes();
      for (int64_t c = 0; c < kCols / 2; ++c) {
        codes[c] = static_cast<int8_t>(80 + random() % 30);
        codes[c + kCols / 2] = static_cast<int8_t>(2 * zero - codes[c] + random() % 3 - 1);
      }
    }
    std::fill(m.zero_points.begin(), m.zero_points.end(), zero);
    return DescribedMatrix::from(scheme, std::move(one));
  }

  /// Rows with equal halves of large codes.
  Buffer activations() {
    std::mt19937 random(4);
    std::vector<uint16_t> bits;
    for (int64_t t = 0; t < kTokens; ++t) {
      std::vector<uint16_t> half;
      for (int64_t c = 0; c < kCols / 2; ++c)
        half.push_back(float_to_bf16(0.75f + static_cast<float>(random() % 64) / 256));
      for (int copies = 0; copies < 2; ++copies) bits.insert(bits.end(), half.begin(), half.end());
    }
    return upload(bits);
  }

  std::vector<float> output_on(const char* row, const Scheme& scheme, int8_t zero) {
    const Selection selection = select({.layer = linear_spec("q_proj", cancelling(scheme, zero)),
                                        .max_num_tokens = kTokens,
                                        .backend = row},
                                       testing::machine_with_engines());
    Linear linear = must(
        Linear::make(cancelling(scheme, zero), selection, std::make_shared<Workspace>(device_)));
    EXPECT_THAT(selection.plan->matrices[0].kernels[0].name, HasSubstr("exact sums"));
    const Buffer x = activations(), y = allocate(kTokens * kRows * sizeof(float));
    expect_done(linear.apply({x.data(), DType::kBF16, kTokens, kCols, kCols},
                             Matrix::f32(y.as<float>(), kTokens, kRows)));
    return download<float>(y);
  }
};

// Partial sums exceed 2^24, so f32 would round them. opencl-simt adds the same integers and scales
// them in the same order.
TEST_F(OpenClMatrixIntegers, AddsWithoutRounding) {
  const Machine machine = testing::machine_with_engines();
  if (const std::string reason = testing::lacks_for_engines(machine); !reason.empty())
    GTEST_SKIP() << reason;
  QuantKey with_zeros = kInt8StaticChannelSym;
  with_zeros.symmetric = false;
  for (const auto& [weight, zero] :
       {std::pair<QuantKey, int8_t>{kInt8StaticChannelSym, 0}, {with_zeros, -7}}) {
    const Scheme scheme{weight, kInt8DynamicTokenSym};
    const std::vector<float> want = output_on("opencl-simt", scheme, zero);
    for (const int lanes : {8, 16}) {
      opencl::emulate_matrix_engines(lanes);
      EXPECT_EQ(output_on("opencl-matrix-wide", scheme, zero), want)
          << name(scheme) << ", " << lanes << " lanes";
    }
  }
}

}  // namespace
}  // namespace moracle::opencl_matrix_integers_test
