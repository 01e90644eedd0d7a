// Compares calls of a linear layer with fused operations around it with the same operations run
// separately.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <vector>

#include "conformance/conformance.h"
#include "kernels/kernel_device.h"
#include "kernels/linear_call.h"
#include "moracle/moe.h"
#include "support/floats.h"
#include "support/must.h"

namespace moracle::linear_call_test {
namespace {

using testing::must;

constexpr int64_t kTokens = 3, kHidden = 64, kOutputs = 16, kTopK = 2;

class LinearCallTest : public ::testing::Test {
 protected:
  LinearCallTest() {
    std::vector<CanonicalMatrix> one;
    one.push_back(conformance::random_matrix({.n = kOutputs, .k = kHidden, .key = kBF16Weight}, 3));
    DescribedMatrix described = DescribedMatrix::from({kBF16Weight, {}}, std::move(one));
    const Selection selection = select(
        {.layer = linear_spec("router", described), .platform = Platform::kCpu}, Machine::here());
    linear_.emplace(
        must(Linear::make(std::move(described), selection, std::make_shared<Workspace>(device_))));
    weight_ = testing::normal_floats(random_, kHidden);
    x_ = residual_ = testing::normal_floats(random_, kTokens * kHidden);
    y_ = testing::normal_floats(random_, kTokens * kHidden);
  }

  AddRmsNorm norm() {
    return {Matrix::f32(x_.data(), kTokens, kHidden), Matrix::f32(y_.data(), kTokens, kHidden),
            weight_.data(), 1e-6f, Matrix::f32(normed_.data(), kTokens, kHidden)};
  }
  Matrix out() { return Matrix::f32(out_.data(), kTokens, kOutputs); }
  LinearCall::Route route() {
    return {{.renormalize = true}, nullptr, kTopK, ids_.data(), weights_.data()};
  }

  std::mt19937 random_{9};
  std::shared_ptr<Device> device_ = *open_device("cpu", 2);
  std::optional<Linear> linear_;
  std::vector<float> weight_, x_, y_, residual_;
  std::vector<float> normed_ = std::vector<float>(kTokens * kHidden);
  std::vector<float> out_ = std::vector<float>(kTokens * kOutputs);
  std::vector<int32_t> ids_ = std::vector<int32_t>(kTokens * kTopK, -7);
  std::vector<float> weights_ = std::vector<float>(kTokens * kTopK);
};

TEST_F(LinearCallTest, RoutesNormedRowsWithBitsOfSeparateOperations) {
  Ops& ops = kernel_device(*device_).ops();
  const AddRmsNorm n = norm();
  const LinearCall::Route to = route();
  must(ops.add_rms_norm(n.x, n.y, n.weight, n.epsilon, n.out, {}));
  must(linear_->apply(n.out, out()));
  must(ops.route(out(), to.routing, nullptr, kTopK, to.topk_ids, to.topk_weights, {}));
  const auto sums = x_, normed = normed_, weights = weights_;
  const auto ids = ids_;
  ASSERT_NE(ids[0], -7);

  x_ = residual_;
  normed_.assign(normed_.size(), 0), ids_.assign(ids_.size(), -7);
  must(linear_->apply({NormedInput{norm()}, out(), route()}, {}));
  EXPECT_EQ(x_, sums);
  EXPECT_EQ(normed_, normed);
  EXPECT_EQ(ids_, ids);
  EXPECT_EQ(weights_, weights);
}

TEST_F(LinearCallTest, RoutesRawRowsWithoutNorm) {
  must(linear_->apply({LinearCall::Raw{Matrix::f32(y_.data(), kTokens, kHidden)}, out(), route()},
                      {}));
  EXPECT_EQ(x_, residual_);
  for (int64_t t = 0; t < kTokens; ++t) {
    EXPECT_GE(weights_[t * kTopK], weights_[t * kTopK + 1]);
    EXPECT_NEAR(weights_[t * kTopK] + weights_[t * kTopK + 1], 1, 1e-6);
  }
}

TEST_F(LinearCallTest, RefusesSeparateSumOfNormWithoutKernelForIt) {
  std::vector<float> sum(kTokens * kHidden);
  const LinearCall call{NormedInput{norm(), Matrix::f32(sum.data(), kTokens, kHidden)}, out()};
  EXPECT_FALSE(linear_->serves(call));
  EXPECT_FALSE(linear_->apply(call, {}));
  EXPECT_EQ(x_, residual_);
}

TEST_F(LinearCallTest, RefusesRowsOfOtherShape) {
  const Matrix narrow = Matrix::f32(y_.data(), kTokens, kHidden - 1);
  const Status done = linear_->apply({LinearCall::Raw{narrow}, out(), route()}, {});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().place, "router");
}

}  // namespace
}  // namespace moracle::linear_call_test
