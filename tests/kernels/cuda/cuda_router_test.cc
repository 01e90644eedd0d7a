// Compares the fused router of few tokens with norm, product and choice run separately: the same
// bits, for any number of calls, and in graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/text.h"
#include "conformance/conformance.h"
#include "kernels/cuda/cuda_test.h"
#include "kernels/cuda/gemv/router.h"
#include "kernels/kernel_device.h"
#include "moracle/moe.h"
#include "support/floats.h"
#include "support/must.h"

namespace moracle::cuda_router_test {
namespace {

using testing::must;

constexpr int64_t kMostTokens = 16;

struct RouterForm {
  const char* name;
  Routing routing;
  bool fused;
};
const RouterForm kForms[] = {
    {"softmax", {}, true},
    {"softmax, renormalized", {.renormalize = true}, true},
    {"top-k, then softmax", {.score = Score::kTopkThenSoftmax}, true},
    {"sigmoid, scaled", {.score = Score::kSigmoid, .scaling_factor = 2.5f}, true},
    {"sigmoid, bias",
     {.score = Score::kSigmoid, .renormalize = true, .correction_bias = true},
     true},
    {"softmax, bias", {.correction_bias = true}, true},
    {"sqrt softplus, bias",
     {.score = Score::kSqrtSoftplus, .renormalize = true, .correction_bias = true},
     true},
    {"groups", {.score = Score::kSigmoid, .num_groups = 4, .top_groups = 2}, false}};

struct Results {
  std::vector<uint16_t> sums, normed, logits;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  bool operator==(const Results&) const = default;
};

class CudaRouterTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    const Selection selection = select_router(8, 64, false);
    if (!selection.plan) GTEST_SKIP() << selection.chosen().error().to_string();
  }

  static DescribedMatrix described(int64_t experts, int64_t hidden, bool bias) {
    const MatrixShape shape{.n = experts, .k = hidden, .key = kBF16Weight, .bias = bias};
    std::vector<CanonicalMatrix> one;
    one.push_back(conformance::random_matrix(shape, 3));
    return DescribedMatrix::from({kBF16Weight, {}}, std::move(one));
  }
  static Selection select_router(int64_t experts, int64_t hidden, bool bias) {
    return select({.layer = linear_spec("router", described(experts, hidden, bias)),
                   .max_num_tokens = kMostTokens,
                   .backend = "cuda-cublaslt",
                   .platform = Platform::kCuda},
                  Machine::here());
  }
  void make(int64_t experts, int64_t hidden, bool bias) {
    experts_ = experts, hidden_ = hidden;
    router_.emplace(
        must(Linear::make(described(experts, hidden, bias), select_router(experts, hidden, bias),
                          std::make_shared<Workspace>(device_))));
    norm_weight_ = floats(hidden);
    bias_ = floats(experts);
    residual_ = to_bf16(normal(kMostTokens * hidden));
    y_ = upload(to_bf16(normal(kMostTokens * hidden)));
    x_ = upload(residual_);
    normed_ = upload(std::vector<uint16_t>(kMostTokens * hidden, 0x7fc0));
    logits_ = upload(std::vector<uint16_t>(kMostTokens * experts, 0x7fc0));
    ids_ = upload(std::vector<int32_t>(kMostTokens * 32, -7));
    weights_ = upload(std::vector<float>(kMostTokens * 32, -7));
  }
  std::vector<float> normal(int64_t count) { return testing::normal_floats(random_, count); }
  Buffer floats(int64_t count) { return upload(normal(count)); }

  LinearCall call(const Routing& routing, int64_t tokens) const {
    return {LinearCall::Raw{bf16_matrix(normed_, tokens, hidden_)},
            bf16_matrix(logits_, tokens, experts_),
            LinearCall::Route{routing, routing.correction_bias ? bias_.as<float>() : nullptr,
                              std::min<int64_t>(8, experts_ / 2), ids_.as<int32_t>(),
                              weights_.as<float>()}};
  }
  LinearCall normed_call(const Routing& routing, int64_t tokens) const {
    LinearCall with_norm = call(routing, tokens);
    with_norm.input = NormedInput{norm(tokens)};
    return with_norm;
  }
  AddRmsNorm norm(int64_t tokens) const {
    return {bf16_matrix(x_, tokens, hidden_), bf16_matrix(y_, tokens, hidden_),
            norm_weight_.as<float>(), 1e-6f, bf16_matrix(normed_, tokens, hidden_)};
  }
  Results results() {
    return {download<uint16_t>(x_), download<uint16_t>(normed_), download<uint16_t>(logits_),
            download<int32_t>(ids_), download<float>(weights_)};
  }
  void reset() {
    must(device_->upload(x_.data(), residual_.data(), x_.bytes(), {}));
    for (const Buffer* const buffer : {&normed_, &logits_, &ids_, &weights_}) {
      const std::vector<uint8_t> bytes(buffer->bytes(), 0x7f);
      must(device_->upload(buffer->data(), bytes.data(), bytes.size(), {}));
    }
  }

  Results composed(const Routing& routing, int64_t tokens) {
    reset();
    Ops& ops = kernel_device(*device_).ops();
    const AddRmsNorm n = norm(tokens);
    const LinearCall c = call(routing, tokens);
    const auto& to = *c.to<LinearCall::Route>();
    must(ops.add_rms_norm(n.x, n.y, n.weight, n.epsilon, n.out, {}));
    must(router_->apply(c.x(), c.out));
    must(ops.route(c.out, routing, to.correction_bias, to.top_k, to.topk_ids, to.topk_weights, {}));
    return results();
  }
  Results fused(const Routing& routing, int64_t tokens) {
    reset();
    must(router_->apply(normed_call(routing, tokens), {}));
    return results();
  }
  /// The norm in a separate kernel.
  Results half_fused(const Routing& routing, int64_t tokens) {
    reset();
    const AddRmsNorm n = norm(tokens);
    must(kernel_device(*device_).ops().add_rms_norm(n.x, n.y, n.weight, n.epsilon, n.out, {}));
    must(router_->apply(call(routing, tokens), {}));
    return results();
  }

  std::mt19937 random_{11};
  std::optional<Linear> router_;
  int64_t experts_ = 0, hidden_ = 0;
  Buffer norm_weight_, bias_, x_, y_, normed_, logits_, ids_, weights_;
  std::vector<uint16_t> residual_;
};

TEST_F(CudaRouterTest, OneKernelGivesBitsOfThree) {
  for (const int64_t hidden : {72, 2048, 2880, 4096, 7168}) {
    for (const int64_t experts : {8, 64, 128, 256, 512}) {
      make(experts, hidden, experts == 64);
      for (const RouterForm& form : kForms) {
        for (const int64_t tokens : {1, 2, 3, 4, 5, 8, 9, 16}) {
          SCOPED_TRACE(str(form.name, ", ", experts, " x ", hidden, ", ", tokens, " tokens"));
          EXPECT_EQ(cuda::gemv_router_serves(call(form.routing, tokens)),
                    form.fused && tokens <= 4);
          EXPECT_EQ(router_->serves(call(form.routing, tokens)), form.fused && tokens <= 4);
          EXPECT_EQ(router_->serves(normed_call(form.routing, tokens)), form.fused && tokens <= 4);
          const Results want = composed(form.routing, tokens);
          ASSERT_TRUE(fused(form.routing, tokens) == want);
          ASSERT_TRUE(half_fused(form.routing, tokens) == want);
        }
      }
    }
  }
}

TEST_F(CudaRouterTest, NormIsPartOfTheKernelWhileRowsFitIntoABlock) {
  make(8, 2048, false);
  EXPECT_TRUE(cuda::gemv_router_norms(norm(1)));
  EXPECT_TRUE(cuda::gemv_router_norms(norm(8)));
  make(8, 7168, false);
  EXPECT_TRUE(cuda::gemv_router_norms(norm(1)));
  EXPECT_FALSE(cuda::gemv_router_norms(norm(8)));
}

// Residual sums grow from call to call, so each replay differs from the previous one.
TEST_F(CudaRouterTest, ReplaysGiveBitsOfCalls) {
  constexpr int kCalls = 3;
  for (const int64_t hidden : {2048, 4096}) {
    make(128, hidden, false);
    const Routing routing{.renormalize = true};
    for (const int64_t tokens : {1, 4}) {
      SCOPED_TRACE(str(hidden, ", ", tokens, " tokens"));
      const LinearCall one = normed_call(routing, tokens);
      const auto enqueue = [&]() -> Status {
        for (int i = 0; i < kCalls; ++i) {
          if (Status done = router_->apply(one, {}); !done) return done;
        }
        return {};
      };
      reset();
      must(enqueue());
      must(enqueue());
      const Results want = results();
      const auto graph = must(device_->record(enqueue));
      ASSERT_NE(graph, nullptr);
      reset();
      must(graph->replay());
      must(graph->replay());
      EXPECT_TRUE(results() == want);
    }
  }
}

}  // namespace
}  // namespace moracle::cuda_router_test
