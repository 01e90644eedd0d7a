// Calls whose experts move into slots first.
#include <gmock/gmock.h>

#include "placement/placed_layers.h"

namespace moracle::fetched_test {
namespace {

using namespace testing;
using namespace testing::placed;

TEST(FetchedCalls, LeaveHostOnlyWhatFindsNoRoom) {
  for (const Scheme& scheme : {*parse_scheme("int4-w4a16-g32"), *parse_scheme("int8-w8a8"), kStatic,
                               *parse_scheme("bf16")}) {
    const LayerSpec spec = layer_of(scheme);
    const RowNames rows{"cpu", "reference"};
    const DescribedWeights weights = conformance::random_weights(spec, 3);
    for (const int64_t num_slots : {int64_t{0}, int64_t{1}, int64_t{3}, kExperts}) {
      SCOPED_TRACE(name(scheme) + ", " + std::to_string(num_slots) + " slots");
      PlacedMoe moe = must(make(spec, rows, num_slots));
      moe.set_policy(kEager);
      moe.set_ways({CallWay::kFetched});
      for (uint32_t step = 0; step < 12; ++step) {
        const PlacementCounts before = moe.counts();
        TokenBatch batch = step % 3 == 2 ? batch_of(spec, step) : random_batch(spec, 1, step);
        const std::vector<float> got = output_of(moe, batch);
        EXPECT_LE(share_of_bound(expected_of_both(weights, batch, rows), got), 1) << step;
        std::set<int32_t> chosen(batch.ids.begin(), batch.ids.end());
        chosen.erase(-1);
        const PlacementCounts after = moe.counts();
        const bool all = static_cast<int64_t>(chosen.size()) <= num_slots;
        EXPECT_EQ(after.misses == before.misses, all) << step;
        EXPECT_EQ(after.hits > before.hits, num_slots > 0) << step;
        for (const int32_t there : moe.placed()) chosen.erase(there);
        EXPECT_TRUE(!all || chosen.empty()) << step;
      }
      EXPECT_TRUE(num_slots < kExperts || moe.counts().moves == kExperts) << "each came once";
    }
  }
}

TEST(FetchedCalls, ReplaceExpertsWithLowestScores) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  PlacedMoe moe = must(make(spec, {"cpu", "cpu"}, 4));
  moe.set_policy(kEager);
  moe.set_ways({CallWay::kFetched});
  const auto call = [&](std::vector<int32_t> experts) {
    TokenBatch batch = random_batch(spec, 1);
    for (size_t i = 0; i < batch.ids.size(); ++i) batch.ids[i] = experts[i % experts.size()];
    (void)output_of(moe, batch);
  };
  for (const int32_t expert : {0, 1, 2, 3, 0, 1, 3}) call({expert});
  EXPECT_THAT(moe.placed(), ::testing::ElementsAre(0, 1, 2, 3));
  call({5});
  EXPECT_THAT(moe.placed(), ::testing::ElementsAre(0, 1, 5, 3)) << "2 was used longest ago";
}

// Moves that are on their way keep their slots.
TEST(FetchedCalls, MixWithMovesAndStreamedCalls) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  const RowNames rows{"cpu", "reference"};
  const DescribedWeights weights = conformance::random_weights(spec, 3);
  const auto devices = device_pair();
  PlacedMoe moe = must(make(spec, rows, 3, 3, devices));
  must(moe.stream(select_slots(spec, rows.slots, 4)));
  moe.set_policy(kEager);
  constexpr CallWay kWays[] = {CallWay::kDivided, CallWay::kFetched, CallWay::kStreamed};
  for (uint32_t step = 0; step < 30; ++step) {
    moe.set_ways({kWays[(step * 7 / 2) % 3]});
    const TokenBatch batch = random_batch(spec, 1 + step % 3, step);
    EXPECT_LE(share_of_bound(expected_of_both(weights, batch, rows), output_of(moe, batch)), 1)
        << "step " << step;
    must(devices->move(2));
  }
  EXPECT_GT(moe.counts().moves, 10);
  EXPECT_GT(moe.counts().streamed_calls, 5);
}

TEST(FetchedCalls, DoNotFetchFromFilesOrIntoSlotsOfSeveralDevices) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  PlacedMoe from_files = must(
      PlacedMoe::make_from_files(conformance::random_weights(spec, 3), select_slots(spec, "cpu", 2),
                                 select_slots(spec, "cpu", 2), device_pair(), false));
  const auto devices = device_pair();
  devices->add(std::make_shared<Workspace>(must(open_device("cpu", 1))));
  const Selection slots[] = {select_slots(spec, "cpu", 2), select_slots(spec, "cpu", 2)};
  PlacedMoe on_two =
      must(PlacedMoe::make(conformance::random_weights(spec, 3),
                           select(request_of(spec, "cpu"), Machine::here()), slots, devices));
  for (PlacedMoe* const moe : {&from_files, &on_two}) {
    moe->set_ways({CallWay::kFetched});
    (void)output_of(*moe, batch_of(spec));
    EXPECT_EQ(moe->counts().hits, 0);
    EXPECT_GT(moe->counts().misses, 0);
  }
}

}  // namespace
}  // namespace moracle::fetched_test
