// Tests that the CUDA and OpenCL backends run exactly the kernels of the plan, at the first and the
// last token count of each kernel.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_test.h"
#include "moe/layer_on_rows.h"
#include "moe/watched_kernels.h"
#include "oracle/backend.h"

namespace moracle::gpu_watched_kernels_test {
namespace {

struct Rows {
  const char* device;
  Platform platform;
  int64_t max_tokens;  // beyond the first count of the last kernel
};

class WatchedRows : public OneDeviceTest, public ::testing::WithParamInterface<Rows> {
 protected:
  WatchedRows() : OneDeviceTest(GetParam().device) {}

  void apply(FusedMoe& moe, const LayerSpec& spec, int64_t tokens) {
    const testing::TokenBatch batch = testing::random_batch(spec, tokens);
    const Buffer hidden = upload(to_bf16(batch.hidden)), ids = upload(batch.ids);
    const Buffer weights = upload(batch.weights), output = allocate(batch.hidden.size() * 2);
    expect_done(moe.apply(bf16_matrix(hidden, tokens, spec.hidden_size), {ids.as<int32_t>()},
                          {weights.as<float>()}, bf16_matrix(output, tokens, spec.hidden_size)));
    expect_done(device_->synchronize());
  }

  void expect_planned_kernels(const Backend& row, const Scheme& scheme) {
    const LayerSpec spec = testing::odd_layer(scheme);
    const Selection selection = select({.layer = spec,
                                        .max_num_tokens = GetParam().max_tokens,
                                        .backend = std::string(row.name),
                                        .platform = GetParam().platform},
                                       Machine::here());
    if (!selection.plan) return;
    ++served_;
    const Plan& plan = *selection.plan;
    auto moe = FusedMoe::make(conformance::random_weights(spec, 1), selection, device_);
    ASSERT_TRUE(moe) << moe.error().to_string();
    std::set<int64_t> tokens;
    for (const MatrixPlan& matrix : plan.matrices) {
      for (const KernelUse& use : matrix.kernels) {
        tokens.insert(use.range.from_tokens);
        tokens.insert(use.range.to_tokens > 0 ? use.range.to_tokens : GetParam().max_tokens);
      }
    }
    testing::Watching watching;
    testing::Names seen;
    for (const int64_t count : tokens) {
      apply(*moe, spec, count);
      const std::vector<KernelRun> runs = watching.take();
      EXPECT_EQ(runs.size(), 2u) << count << " tokens";
      testing::expect_planned(runs, plan, count, seen);
    }
    EXPECT_EQ(seen, testing::planned(plan));
  }

  int served_ = 0;
};

TEST_P(WatchedRows, MatchPlanForEveryScheme) {
  for (const Backend& row : backends()) {
    if (row.platform != GetParam().platform) continue;
    for (const Scheme& scheme : conformance::schemes()) {
      SCOPED_TRACE(str(row.name, ", ", name(scheme)));
      expect_planned_kernels(row, scheme);
    }
  }
  EXPECT_GT(served_, 20);
}

INSTANTIATE_TEST_SUITE_P(Cuda, WatchedRows, ::testing::Values(Rows{"cuda", Platform::kCuda, 600}));
INSTANTIATE_TEST_SUITE_P(OpenCl, WatchedRows,
                         ::testing::Values(Rows{"opencl", Platform::kOpenCl, 100}));

}  // namespace
}  // namespace moracle::gpu_watched_kernels_test
