// Tokens that travel in the batched format, with ranks that are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dispatched_layers.h"
#include "host_batches.h"
#include "parallel/dispatch/dispatched_moe.h"
#include "ranks_of_threads.h"
#include "support/must.h"

namespace moracle::batched_test {
namespace {

using namespace testing;
using ::testing::HasSubstr;

constexpr int64_t kSix = 6;  // experts, which 2 and 3 ranks divide

struct Ran {
  std::string error;
  double difference = 0;
  int64_t calls = 0;  // of batches, with the first one at make
};

struct Layers {
  Scheme scheme = *parse_scheme("bf16");
  int64_t ranks = 2, tokens = 3, experts = kSix;
  Placement placement = Placement::kLinear;
  std::string backend = "reference";
  bool weight_on_input = false;
};

LayerSpec spec_of(const Layers& layers) {
  LayerSpec layer = layer_of(layers.scheme);
  layer.num_experts = layers.experts;
  layer.routing.weight_on_input = layers.weight_on_input;
  if (layers.weight_on_input) layer.top_k = 1;  // as every backend needs
  return layer;
}

// Each rank has layers.tokens tokens; the plan is for kMostTokens of all ranks, and batches take 3.
std::vector<Ran> run_ranks(const Layers& layers) {
  const LayerSpec layer = spec_of(layers);
  std::vector<Ran> results(layers.ranks);
  on_ranks(layers.ranks, [&](const std::shared_ptr<Group>& group) {
    Ran& ran = results[group->rank()];
    const auto run = [&]() -> Status {
      const std::shared_ptr<Device> device = *open_device("cpu", 1);
      const auto exchange =
          std::make_shared<BatchedExchange>(must(open_exchange(group, device)), group, 3);
      Parallelism parallel;
      parallel.ep_size = layers.ranks, parallel.placement = layers.placement;
      std::vector<ExpertMap> maps;
      for (int64_t r = 0; r < layers.ranks; ++r) {
        parallel.ep_rank = r;
        maps.push_back(*parallel.map(layer.num_experts));
      }
      parallel.ep_rank = group->rank();
      auto moe = make_moe(layer, parallel, device, kMostTokens, layers.backend);
      if (!moe) return moe.error();
      auto spread = DispatchedMoe::make(*std::move(moe), maps, group, exchange, device);
      if (!spread) return spread.error();
      Tokens own = tokens_of(group->rank(), layers.tokens, layers.experts);
      std::vector<float> output(own.hidden.size());
      const Status done = spread->apply_gathered(
          Matrix::f32(own.hidden.data(), own.count(), kHidden), {own.ids.data()},
          {own.weights.data()}, Matrix::f32(output.data(), own.count(), kHidden));
      if (!done) return done;
      ran.difference = largest_difference(output, expected(layer, own, layers.backend));
      ran.calls = exchange->batches()->calls();
      return {};
    };
    const Status done = run();
    if (done) return;
    ran.error = done.error().to_string();
    group->abort(done.error());
  });
  return results;
}

void expect_close(const std::vector<Ran>& results, int64_t calls) {
  for (const Ran& ran : results) {
    EXPECT_EQ(ran.error, "");
    EXPECT_LT(ran.difference, 2e-5);
    EXPECT_EQ(ran.calls, calls);
  }
}
void expect_refused(const Layers& layers, const std::string& reason) {
  for (const Ran& ran : run_ranks(layers)) EXPECT_THAT(ran.error, HasSubstr(reason));
}

TEST(Batches, TokensGetWhatOneProcessGives) {
  expect_close(run_ranks({}), 2);
}
TEST(Batches, ThreeRanksShareSixExperts) {
  expect_close(run_ranks({.ranks = 3, .tokens = 2}), 2);
}
TEST(Batches, CodesTravelWithTheirScales) {
  expect_close(run_ranks({.scheme = *parse_scheme("int8-w8a8")}), 2);
}
// The one call is the first of make.
TEST(Batches, MoreTokensThanTheyTakeAreGathered) {
  expect_close(run_ranks({.tokens = 4}), 1);
}
TEST(Batches, UnevenExpertsAreRefused) {
  expect_refused({.experts = 5},
                 "exchange 'batched': needs equally many experts on each rank; "
                 "layer: there are 5 on 2 ranks");
}
TEST(Batches, OtherPlacementIsRefused) {
  expect_refused({.placement = Placement::kRoundRobin},
                 "needs placement linear, one copy of each expert; layer: expert 1 is on rank 1");
}
TEST(Batches, WeightsOnTheInputAreRefused) {
  expect_refused({.weight_on_input = true}, "layer: needs weights on results of experts");
}

TEST(Batches, ExactBitsAreRefused) {
  const auto group = *open_group({});
  const std::shared_ptr<Device> device = *open_device("cpu", 1);
  BatchedExchange exchange(must(open_exchange(group, device)), group, 3);
  Dispatch dispatch(*group, exchange, *device, /*same_bits=*/true);
  FusedMoe moe = must(make_moe(spec_of({}), {}, device, kMostTokens));
  const ExpertMap all[] = {ExpertMap::all(kSix)};
  const Status done = dispatch.prepare(moe, must(ExpertCopies::from(all, true)));
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().to_string(), HasSubstr("needs deterministic off"));
}

}  // namespace
}  // namespace moracle::batched_test
