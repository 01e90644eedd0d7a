// Tests that only planned kernels run. The table starts with a backend whose kernels are watched or
// fail. Later backends could serve, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/fused_experts.h"
#include "kernels/kernels.h"
#include "moe/layer_on_rows.h"
#include "oracle/backend.h"

namespace moracle::planned_kernels_test {
namespace {

int made = 0, runs = 0;
std::vector<const void*> places;  // of the weights that each run read

/// The reference kernel with a counter of its runs.
class Watched : public LinearKernel {
 public:
  Watched(const KernelWeights& weights, std::unique_ptr<LinearKernel> inner)
      : weights_(weights), inner_(std::move(inner)) {
    ++made;
  }
  Status run(const LinearCall& call, Stream stream) override {
    ++runs;
    places.push_back(weights_.buffer.as<std::byte>());
    places.push_back(weights_.input_scales.as<float>());
    return inner_->run(call, stream);
  }

 private:
  const KernelWeights& weights_;
  std::unique_ptr<LinearKernel> inner_;
};

/// A kernel that always fails.
class Failing : public LinearKernel {
 public:
  Failing(const KernelWeights&, std::unique_ptr<LinearKernel>) {}
  Status run(const LinearCall&, Stream) override {
    return Error{ErrorKind::kUnsupported, "", "failing", "to work", "it does not"};
  }
};

template <class Kernel>
Result<std::unique_ptr<GroupedLinear>> make(KernelWeights&& weights, const KernelPlan& plan,
                                            Device& device) {
  auto linear = kReferenceKernels.make(std::move(weights), plan, device);
  if (!linear) return linear.error();
  std::unique_ptr<LinearKernel>& kernel = (*linear)->kernels().front();
  kernel = std::make_unique<Kernel>((*linear)->weights(), std::move(kernel));
  return linear;
}

const Kernels kWatchedKernels = {kReferenceKernels.plan, make<Watched>};
const Kernels kFailingKernels = {kReferenceKernels.plan, make<Failing>};

/// A kernel for the whole layer, for a range of tokens. Records the token counts of its runs.
class Whole : public FusedExperts {
 public:
  Whole(const KernelRange& range, std::vector<int64_t>& ran) : range_(range), ran_(ran) {}
  bool serves(int64_t tokens) const override { return range_.may_run(tokens); }
  Status run(const ExpertsCall& call, const int32_t*, const MoeScratch&, Stream) override {
    ran_.push_back(call.num_tokens());
    return {};
  }

 private:
  KernelRange range_;
  std::vector<int64_t>& ran_;
};
std::vector<int64_t> few, many;

KernelPlan plan_whole(const KernelRequest& request, const Machine& machine) {
  KernelPlan plan = kReferenceKernels.plan(request, machine);
  const PlannedKernel parts{plan.kernels[0].form, {.from_tokens = 3, .to_tokens = 4}};
  plan.kernels = {{NamedKernel{"few"}, {.to_tokens = 2}, true},
                  parts,
                  {NamedKernel{"many"}, {.from_tokens = 5}, true}};
  return plan;
}
Result<std::vector<std::unique_ptr<FusedExperts>>> fuse(const GroupedLinear&, const GroupedLinear&,
                                                        const Plan& plan, Device&) {
  std::vector<std::unique_ptr<FusedExperts>> kernels;
  for (const PlannedKernel& planned : plan.matrices[0].kernel->kernels) {
    if (planned.fused)
      kernels.push_back(std::make_unique<Whole>(planned.range, kernels.empty() ? few : many));
  }
  return kernels;
}
const Kernels kWholeKernels = {plan_whole, make<Watched>, fuse};

/// A new backend before all others, which remain as possible fallbacks.
std::vector<Backend> table_with(const char* name, const Kernels& kernels) {
  std::vector<Backend> table(backends().begin(), backends().end());
  Backend row = table.back();
  row.name = name;
  row.kernels = &kernels;
  table.insert(table.begin(), row);
  return table;
}

// For any number of tokens, both GEMMs use only the planned backend.
TEST(PlannedKernels, OnlyPlannedKernelsRun) {
  const auto table = table_with("watched", kWatchedKernels);
  for (const Scheme& scheme : conformance::schemes()) {
    const LayerSpec spec = testing::odd_layer(scheme);
    const Selection selection =
        select({.layer = spec, .max_num_tokens = 40}, Machine::here(), table);
    ASSERT_EQ(selection.plan->backend->name, "watched");
    made = runs = 0;
    auto moe =
        FusedMoe::make(conformance::random_weights(spec, 1), selection, *open_device("cpu", 2));
    ASSERT_TRUE(moe) << moe.error().to_string();
    EXPECT_EQ(made, 2) << name(scheme);
    for (int64_t tokens = 0; tokens <= 40; ++tokens) {
      testing::TokenBatch batch = testing::random_batch(spec, tokens);
      std::vector<float> output(batch.hidden.size());
      const int before = runs;
      ASSERT_TRUE(moe->apply(Matrix::f32(batch.hidden.data(), tokens, spec.hidden_size),
                             {batch.ids.data()}, {batch.weights.data()},
                             Matrix::f32(output.data(), tokens, spec.hidden_size)));
      ASSERT_EQ(runs - before, tokens == 0 ? 0 : 2) << name(scheme) << ", " << tokens;
    }
  }
}

TEST(PlannedKernels, OnlyPlannedKernelsRunInDenseLayer) {
  const auto table = table_with("watched", kWatchedKernels);
  std::vector<CanonicalMatrix> one;
  one.push_back(conformance::random_matrix({.n = 8, .k = 16, .key = kBF16Weight}, 3));
  DescribedMatrix described = DescribedMatrix::from({kBF16Weight, {}}, std::move(one));
  const Selection selection =
      select({.layer = linear_spec("lm_head", described)}, Machine::here(), table);
  made = runs = 0;
  auto linear = Linear::make(std::move(described), selection,
                             std::make_shared<Workspace>(*open_device("cpu", 2)));
  ASSERT_TRUE(linear) << linear.error().to_string();
  std::vector<float> x(2 * 16), y(2 * 8);
  ASSERT_TRUE(linear->apply(Matrix::f32(x.data(), 2, 16), Matrix::f32(y.data(), 2, 8)));
  EXPECT_EQ(made, 1);
  EXPECT_EQ(runs, 1);
}

TEST(PlannedKernels, FusedKernelsRunTokensOfTheirPlan) {
  const auto table = table_with("whole", kWholeKernels);
  const LayerSpec spec = testing::odd_layer({kBF16Weight, {}});
  auto moe =
      FusedMoe::make(conformance::random_weights(spec, 1),
                     select({.layer = spec}, Machine::here(), table), *open_device("cpu", 2));
  ASSERT_TRUE(moe) << moe.error().to_string();
  runs = 0;
  few.clear(), many.clear();
  for (int64_t tokens = 1; tokens <= 6; ++tokens) {
    testing::TokenBatch batch = testing::random_batch(spec, tokens);
    std::vector<float> output(batch.hidden.size());
    ASSERT_TRUE(moe->apply(Matrix::f32(batch.hidden.data(), tokens, spec.hidden_size),
                           {batch.ids.data()}, {batch.weights.data()},
                           Matrix::f32(output.data(), tokens, spec.hidden_size)));
  }
  EXPECT_EQ(few, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(many, (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(runs, 4);  // of two matrices, with three and four tokens
}

// An earlier CUDA graph still reads this memory.
TEST(PlannedKernels, ReadNewWeightsAtOldAddresses) {
  const auto table = table_with("watched", kWatchedKernels);
  for (const Scheme& scheme : conformance::schemes()) {
    const LayerSpec spec = testing::odd_layer(scheme);
    auto moe =
        FusedMoe::make(conformance::random_weights(spec, 1),
                       select({.layer = spec}, Machine::here(), table), *open_device("cpu", 2));
    ASSERT_TRUE(moe) << moe.error().to_string();
    testing::TokenBatch batch = testing::random_batch(spec, 4);
    const auto run = [&] {
      std::vector<float> output(batch.hidden.size());
      places.clear();
      EXPECT_TRUE(moe->apply(Matrix::f32(batch.hidden.data(), 4, spec.hidden_size),
                             {batch.ids.data()}, {batch.weights.data()},
                             Matrix::f32(output.data(), 4, spec.hidden_size)));
      return output;
    };
    const std::vector<float> first = run();
    const std::vector<const void*> before = places;
    ASSERT_EQ(before.size(), 4u);
    auto packed = moe->pack(conformance::random_weights(spec, 2));
    ASSERT_TRUE(packed) << packed.error().to_string();
    ASSERT_TRUE(moe->swap(*std::move(packed)));
    EXPECT_NE(run(), first) << name(scheme);
    EXPECT_EQ(places, before) << name(scheme);
  }
}

// A failing kernel has no fallback.
TEST(PlannedKernels, FailureIsReported) {
  const auto table = table_with("failing", kFailingKernels);
  const LayerSpec spec = testing::odd_layer({kBF16Weight, {}});
  const Selection selection = select({.layer = spec}, Machine::here(), table);
  auto moe =
      FusedMoe::make(conformance::random_weights(spec, 1), selection, *open_device("cpu", 2));
  ASSERT_TRUE(moe) << moe.error().to_string();
  testing::TokenBatch batch = testing::random_batch(spec, 3);
  std::vector<float> output(batch.hidden.size(), 7.0f);
  const Status done =
      moe->apply(Matrix::f32(batch.hidden.data(), 3, spec.hidden_size), {batch.ids.data()},
                 {batch.weights.data()}, Matrix::f32(output.data(), 3, spec.hidden_size));
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().place, "failing");
  EXPECT_EQ(output, std::vector<float>(output.size(), 7.0f));
}

}  // namespace
}  // namespace moracle::planned_kernels_test
