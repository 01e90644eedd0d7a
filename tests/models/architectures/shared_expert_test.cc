// Tests a shared expert next to routed experts, with and without a gate, against a double
// reference.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/kernel_device.h"
#include "models/decoder/feed_forward.h"
#include "models/modules.h"
#include "moracle/device.h"
#include "support/floats.h"

namespace moracle::shared_expert_test {
namespace {

constexpr int64_t kHidden = 12, kExperts = 3, kTopK = 2, kTokens = 5;

class SharedExpert : public ::testing::Test {
 protected:
  std::vector<float> normal(int64_t count) { return testing::normal_floats(random_, count, 0.4f); }
  static DescribedMatrix matrix(const std::vector<std::vector<float>>& experts, int64_t k) {
    std::vector<CanonicalMatrix> all;
    for (const std::vector<float>& values : experts) {
      CanonicalMatrix& m = all.emplace_back();
      m.n = static_cast<int64_t>(values.size()) / k;
      m.k = k;
      m.key = kF32Weight;
      const auto bytes = std::as_bytes(std::span(values));
      m.storage.assign(bytes.begin(), bytes.end());
      m.codes = m.storage;
    }
    return DescribedMatrix::from({kF32Weight, {}}, std::move(all));
  }
  struct Expert {
    std::vector<float> w13, w2;
  };
  Expert expert(int64_t intermediate) {
    return {normal(2 * intermediate * kHidden), normal(kHidden * intermediate)};
  }
  static DescribedWeights weights(std::string name, const std::vector<Expert>& experts,
                                  int64_t top_k) {
    std::vector<std::vector<float>> w13, w2;
    for (const Expert& e : experts) w13.push_back(e.w13), w2.push_back(e.w2);
    const auto intermediate = static_cast<int64_t>(w2[0].size()) / kHidden;
    LayerSpec spec;
    spec.name = std::move(name);
    spec.num_experts = static_cast<int64_t>(experts.size());
    spec.hidden_size = kHidden;
    spec.intermediate_size = intermediate;
    spec.top_k = top_k;
    spec.scheme = {kF32Weight, {}};
    return {spec, matrix(w13, kHidden), matrix(w2, intermediate)};
  }
  static std::vector<double> times(const std::vector<float>& w, const std::vector<double>& x) {
    std::vector<double> y(w.size() / x.size());
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
    }
    return y;
  }
  static std::vector<double> through(const Expert& e, const std::vector<double>& x) {
    const std::vector<double> both = times(e.w13, x);
    std::vector<double> h(both.size() / 2);
    for (size_t i = 0; i < h.size(); ++i)
      h[i] = both[i] / (1 + std::exp(-both[i])) * both[h.size() + i];
    return times(e.w2, h);
  }

  /// Runs both parts on the CPU and compares with `routed` + weight · `shared`.
  void check(bool routed, bool gated) {
    const std::vector<Expert> experts = {expert(8), expert(8), expert(8)};
    const Expert dense = expert(10), shared = expert(6);
    const std::vector<float> router = normal(kExperts * kHidden), gate = normal(kHidden);
    const std::vector<float> x = normal(kTokens * kHidden);

    Description description{
        {}, matrix({normal(kHidden)}, kHidden), {}, {}, matrix({normal(kHidden)}, kHidden)};
    description.spec.hidden_size = kHidden;
    GroupedQueryDescription attention{
        {}, {}, {}, {}, matrix({normal(kHidden)}, kHidden), matrix({normal(kHidden)}, kHidden)};
    std::optional<RouterDescription> router_description;
    if (routed) router_description = RouterDescription{matrix({router}, kHidden), {}};
    SharedExpertDescription shared_description{weights("shared", {shared}, 1), {}};
    shared_description.mlp.spec.routing.score = Score::kSigmoid;
    if (gated) shared_description.gate = matrix({gate}, kHidden);
    description.layers.push_back(
        LayerDescription{{},
                         {},
                         std::move(attention),
                         std::move(router_description),
                         routed ? weights("experts", experts, kTopK) : weights("mlp", {dense}, 1),
                         std::move(shared_description)});

    // Backend choices for the feed-forward part only, in visiting order.
    std::vector<ModuleChoice> choices;
    auto choose = [&](const ModuleLabel& label, LayerSpec spec) -> Status {
      if (label.part == "attention" || label.part == "output") return {};
      Request request;
      request.layer = std::move(spec);
      request.max_num_tokens = kTokens;
      request.platform = Platform::kCpu;
      choices.push_back({label.name(), label.layer, select(request, Machine::here())});
      return {};
    };
    struct Visitor {
      decltype(choose)& add;
      Status operator()(const ModuleLabel& label, const DescribedMatrix& m) {
        return add(label, linear_spec(module_name(m), m));
      }
      Status operator()(const ModuleLabel& label, const DescribedWeights& w) {
        return add(label, w.spec);
      }
    };
    ASSERT_TRUE(visit_modules(description, Visitor{choose}));
    auto workspace = std::make_shared<Workspace>(*open_device("cpu", 2));
    Device& device = workspace->device();
    const size_t bytes = carve_feed_forward(description, kTokens, DType::kF32, nullptr).bytes;
    auto memory = device.allocate(bytes);
    ASSERT_TRUE(memory);
    const FeedForwardScratch scratch =
        carve_feed_forward(description, kTokens, DType::kF32, memory->as<std::byte>());
    EXPECT_EQ(scratch.bytes, bytes);
    std::fill_n(scratch.weight_one, kTokens, 1.0f);
    const Progress none;
    Loader loader(workspace, std::move(choices), {}, none, 0);
    FeedForward feed_forward;
    const Status loaded = feed_forward.load(std::move(description.layers[0]), 1e-6f, loader);
    ASSERT_TRUE(loaded) << loaded.error().to_string();
    ASSERT_TRUE(std::move(loader).finish());

    std::vector<float> in = x, out(kTokens * kHidden, NAN);
    const Matrix input = Matrix::f32(in.data(), kTokens, kHidden);
    const Status done =
        feed_forward.apply({input}, input, Matrix::f32(out.data(), kTokens, kHidden), scratch,
                           kernel_device(device).ops(), {}, {});
    ASSERT_TRUE(done) << done.error().to_string();
    for (int64_t t = 0; t < kTokens; ++t) {
      const std::vector<double> token(x.begin() + t * kHidden, x.begin() + (t + 1) * kHidden);
      std::vector<double> want(kHidden);
      auto add = [&](const Expert& e, double weight) {
        const std::vector<double> y = through(e, token);
        for (int64_t c = 0; c < kHidden; ++c) want[c] += weight * y[c];
      };
      if (routed) {
        std::vector<double> scores = times(router, token);
        double sum = 0;
        for (double& score : scores) sum += score = std::exp(score);
        const auto worst = std::min_element(scores.begin(), scores.end()) - scores.begin();
        for (int64_t e = 0; e < kExperts; ++e) {
          if (e != worst) add(experts[e], scores[e] / sum);
        }
      } else {
        add(dense, 1);
      }
      add(shared, gated ? 1 / (1 + std::exp(-times(gate, token)[0])) : 1);
      for (int64_t c = 0; c < kHidden; ++c)
        EXPECT_NEAR(out[t * kHidden + c], want[c], 2e-6) << "token " << t << " column " << c;
    }
  }

  std::mt19937 random_{3};
};

TEST_F(SharedExpert, AddsFullyWithoutGate) {
  check(true, false);
  check(false, false);
}

TEST_F(SharedExpert, IsScaledBySigmoidOfGate) {
  check(true, true);
  check(false, true);
}

}  // namespace
}  // namespace moracle::shared_expert_test
