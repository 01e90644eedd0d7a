// Tests that every backend runs the kernels that its plan lists for token and row counts, and that
// every listed kernel runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/text.h"
#include "moe/layer_on_rows.h"
#include "moe/watched_kernels.h"
#include "oracle/backend.h"
#include "support/sample.h"

namespace moracle::watched_kernels_test {
namespace {

using testing::expect_planned;
using testing::Names;
using testing::planned;
using testing::TokenBatch;
using testing::Watching;

constexpr int64_t kTokens = 14;

/// The first expert of each token is expert 0. The others follow in a circle.
TokenBatch crowded(const LayerSpec& spec, int64_t tokens) {
  TokenBatch batch = testing::random_batch(spec, tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    batch.ids[t * spec.top_k] = 0;
    for (int64_t j = 1; j < spec.top_k; ++j)
      batch.ids[t * spec.top_k + j] = static_cast<int32_t>(1 + (t + j) % (spec.num_experts - 1));
  }
  return batch;
}

void expect_only_what_is_planned(const Request& request) {
  const LayerSpec& spec = request.layer;
  const Selection selection = select(request, Machine::here());
  ASSERT_TRUE(selection.plan) << explain(selection);
  const Plan& plan = *selection.plan;
  auto moe =
      FusedMoe::make(conformance::random_weights(spec, 1), selection, *open_device("cpu", 2));
  ASSERT_TRUE(moe) << moe.error().to_string();
  Watching watching;
  Names seen;
  for (int64_t tokens = 1; tokens <= kTokens; ++tokens) {
    for (TokenBatch& batch :
         std::vector{crowded(spec, tokens), testing::random_batch(spec, tokens)}) {
      std::vector<float> output(batch.hidden.size());
      ASSERT_TRUE(moe->apply(Matrix::f32(batch.hidden.data(), tokens, spec.hidden_size),
                             {batch.ids.data()}, {batch.weights.data()},
                             Matrix::f32(output.data(), tokens, spec.hidden_size)));
      const std::vector<KernelRun> runs = watching.take();
      EXPECT_GE(runs.size(), 2u);
      expect_planned(runs, plan, tokens, seen);
    }
  }
  EXPECT_EQ(seen, planned(plan));
}

// Compares the numbers of the plan, not words in a name.
TEST(WatchedKernels, MatchPlanForEveryTokenAndRowCount) {
  for (const Scheme& scheme : conformance::schemes()) {
    const LayerSpec spec = testing::odd_layer(scheme);
    testing::Sample sample(name(scheme));
    for (const std::string& row : testing::cpu_rows(spec)) {
      for (const bool deterministic : {false, true}) {
        for (const bool bf16 : {false, true}) {
          if (!sample.takes()) continue;
          SCOPED_TRACE(str(row, ", ", name(scheme), deterministic ? ", deterministic" : "",
                           bf16 ? ", bf16 activations" : ""));
          expect_only_what_is_planned({.layer = spec,
                                       .max_num_tokens = kTokens,
                                       .deterministic = deterministic,
                                       .bf16_activations = bf16,
                                       .backend = row});
        }
      }
    }
  }
}

TEST(WatchedKernels, MatchPlanForDenseLayer) {
  for (const Scheme& scheme : {Scheme{kBF16Weight, {}}, Scheme{int4_static_group(32), {}}}) {
    for (const Backend& row : backends()) {
      std::vector<CanonicalMatrix> one;
      one.push_back(conformance::random_matrix({.n = 40, .k = 64, .key = scheme.weight}, 3));
      DescribedMatrix described = DescribedMatrix::from(scheme, std::move(one));
      const Selection selection = select({.layer = linear_spec("lm_head", described),
                                          .max_num_tokens = kTokens,
                                          .backend = std::string(row.name),
                                          .platform = Platform::kCpu},
                                         Machine::here());
      if (!selection.plan) continue;
      SCOPED_TRACE(str(row.name, ", ", name(scheme)));
      auto linear = Linear::make(std::move(described), selection,
                                 std::make_shared<Workspace>(*open_device("cpu", 2)));
      ASSERT_TRUE(linear) << linear.error().to_string();
      Watching watching;
      Names seen;
      for (int64_t tokens = 1; tokens <= kTokens; ++tokens) {
        std::vector<float> x(tokens * 64), y(tokens * 40);
        ASSERT_TRUE(
            linear->apply(Matrix::f32(x.data(), tokens, 64), Matrix::f32(y.data(), tokens, 40)));
        expect_planned(watching.take(), *selection.plan, tokens, seen);
      }
      EXPECT_EQ(seen, planned(*selection.plan));
    }
  }
}

}  // namespace
}  // namespace moracle::watched_kernels_test
