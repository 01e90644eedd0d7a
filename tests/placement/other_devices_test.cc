// Layers with slots on several devices, which are CPU devices here.
#include <gmock/gmock.h>

#include "placement/placed_layers.h"
#include "placement/policy.h"
#include "support/sample.h"

namespace moracle::other_devices_test {
namespace {

using namespace testing;
using namespace testing::placed;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<DevicePair> devices_of(size_t count) {
  auto devices = device_pair();
  for (size_t d = 1; d < count; ++d)
    devices->add(std::make_shared<Workspace>(must(open_device("cpu", 1))));
  return devices;
}

std::vector<Selection> selections(const LayerSpec& spec, const std::string& row,
                                  const std::vector<int64_t>& slots) {
  std::vector<Selection> all;
  for (const int64_t count : slots) all.push_back(select_slots(spec, row, count));
  return all;
}

Result<PlacedMoe> make_on(const LayerSpec& spec, const RowNames& rows,
                          const std::vector<int64_t>& slots,
                          const std::shared_ptr<DevicePair>& devices, uint64_t seed = 3) {
  return PlacedMoe::make(conformance::random_weights(spec, seed),
                         select(request_of(spec, rows.host), Machine::here()),
                         selections(spec, rows.slots, slots), devices);
}

TEST(OtherDevices, MatchOneDeviceForEverySchemeAndSlots) {
  int compared = 0;
  testing::Sample sample("schemes");
  for (const Scheme& scheme : conformance::schemes()) {
    if (!sample.takes()) continue;
    LayerSpec spec = odd_layer(scheme, kExperts, 3);
    const TokenBatch batch = batch_of(spec);
    const DescribedWeights weights = conformance::random_weights(spec, 3);
    spec = weights.spec;
    for (const RowNames& rows : pairs_of_rows(spec)) {
      SCOPED_TRACE(name(scheme) + ", " + rows.host + " and " + rows.slots);
      // Each expert within the bound of its row, and the sum of the parts rounded to f32.
      const conformance::Expected want = expected_of_both(weights, batch, rows);
      for (const std::vector<int64_t>& slots :
           {std::vector<int64_t>{1, 2}, {0, 3}, {2, 0}, {3, 3}, {1, 1, 2}}) {
        std::vector<float> runs[2];
        for (std::vector<float>& got : runs) {
          PlacedMoe moe = must(make_on(spec, rows, slots, devices_of(slots.size())));
          EXPECT_EQ(moe.slots_of_devices(), slots);
          const auto count = static_cast<int64_t>(moe.placed().size());
          for (int64_t slot = 0; slot < count; ++slot)
            must(moe.place((slot * 5 + 1) % kExperts, slot));
          got = output_of(moe, batch);
          const PlacementCounts counts = moe.counts();
          ASSERT_EQ(counts.hits_of_devices.size(), slots.size());
          int64_t hits = 0;
          for (size_t d = 0; d < slots.size(); ++d) {
            EXPECT_EQ(counts.hits_of_devices[d] > 0, slots[d] > 0);
            hits += counts.hits_of_devices[d];
          }
          EXPECT_EQ(hits, counts.hits);
        }
        EXPECT_LE(share_of_bound(want, runs[0]), 1);
        EXPECT_EQ(runs[0], runs[1]) << "equal placements, equal bits";
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, testing::Sample::kStep == 1 ? 300 : 40);
}

TEST(OtherDevices, StayWithinBoundsWhileExpertsMove) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  const RowNames rows{"cpu", "cpu"};
  const DescribedWeights weights = conformance::random_weights(spec, 3);
  std::vector<std::vector<float>> runs[2];
  for (std::vector<std::vector<float>>& run : runs) {
    const auto devices = devices_of(2);
    PlacedMoe moe = must(make_on(spec, rows, {1, 2}, devices));
    moe.set_policy({{.host_us = 10, .slot_us = 1, .move_us = 0, .bytes = 1}, 1});
    for (uint32_t step = 0; step < 24; ++step) {
      const TokenBatch batch = random_batch(spec, 1 + step % 2, step);
      run.push_back(output_of(moe, batch));
      EXPECT_LE(share_of_bound(expected_of_both(weights, batch, rows), run.back()), 1)
          << "step " << step;
      must(devices->move(2));
    }
    const PlacementCounts counts = moe.counts();
    EXPECT_GT(counts.moves, 5);
    EXPECT_GT(counts.hits_of_devices[0], 0);
    EXPECT_GT(counts.hits_of_devices[1], 0);
    EXPECT_GT(counts.misses, 5);
  }
  EXPECT_EQ(runs[0], runs[1]) << "equal calls, equal moves, equal bits";
}

TEST(OtherDevices, StreamedCallsRunOnFirstDevice) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  PlacedMoe moe = must(make_on(spec, {"cpu", "reference"}, {1, 1}, devices_of(2)));
  must(moe.stream(select_slots(spec, "reference", 4)));
  moe.set_stream_from(kTokens);
  must(moe.place(4, 0));
  must(moe.place(2, 1));
  const TokenBatch batch = batch_of(spec);
  const std::vector<float> got = output_of(moe, batch);
  EXPECT_LE(
      share_of_bound(expected_of(conformance::random_weights(spec, 3), batch, "reference"), got),
      1);
  EXPECT_EQ(moe.counts().streamed_calls, 1);
}

TEST(OtherDevices, SwapFillsSlotsOfAllDevices) {
  const LayerSpec spec = layer_of(kStatic);
  const RowNames rows{"cpu", "reference"};
  PlacedMoe moe = must(make_on(spec, rows, {1, 2}, devices_of(2)));
  PlacedMoe cold = must(make_on(spec, rows, {1, 2}, devices_of(2), 77));
  for (PlacedMoe* one : {&moe, &cold}) {
    must(one->place(3, 0));
    must(one->place(0, 1));
    must(one->place(5, 2));
  }
  const TokenBatch batch = batch_of(spec);
  must(moe.swap(must(moe.pack(conformance::random_weights(spec, 77)))));
  EXPECT_THAT(moe.placed(), ElementsAre(3, 0, 5));
  EXPECT_EQ(output_of(moe, batch), output_of(cold, batch));
}

TEST(OtherDevices, AdaptersFollowExperts) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  const auto with_adapters = [&](Request request) {
    request.lora_rank = 4;
    request.max_adapters = 1;
    return request;
  };
  Request slots = with_adapters(request_of(spec, "cpu"));
  slots.parallel = must(slots_of(kExperts, 2));
  const Selection of_slots = select(slots, Machine::here());
  const Selection all = select(with_adapters(request_of(spec, "cpu")), Machine::here());
  const LoraWeights adapter = conformance::random_adapters(all.request, 7)[0];
  const std::vector<Selection> both{of_slots, of_slots};
  PlacedMoe moe =
      must(PlacedMoe::make(conformance::random_weights(spec, 3), all, both, devices_of(2)));
  PlacedMoe none =
      must(PlacedMoe::make(conformance::random_weights(spec, 3), all, both, devices_of(2)));
  must(moe.place(1, 0));
  must(moe.place(2, 2));
  for (PlacedMoe* one : {&moe, &none}) must(one->set_adapter(0, adapter));
  must(moe.place(4, 3));  // gets its adapter when it arrives
  TokenBatch batch = batch_of(spec);
  const std::vector<int32_t> ids(static_cast<size_t>(batch.tokens), 0);
  const auto output = [&](PlacedMoe& one) {
    std::vector<float> out(batch.hidden.size(), NAN);
    must(one.apply(Matrix::f32(batch.hidden.data(), batch.tokens, spec.hidden_size),
                   {batch.ids.data()}, {batch.weights.data()},
                   Matrix::f32(out.data(), batch.tokens, spec.hidden_size), {}, {ids.data()}));
    return out;
  };
  // The same backend everywhere: parts differ in the order of the sum alone.
  const std::vector<float> want = output(none), got = output(moe);
  const conformance::Expected sums =
      expected_of_both(conformance::random_weights(spec, 3), batch, {"cpu", "cpu"});
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], 2 * sums.bound[i]) << i;  // each within the bound of its row
  EXPECT_NE(want, output_of(none, batch)) << "the adapter changes the output";
  EXPECT_GT(moe.counts().hits_of_devices[1], 0);
}

TEST(OtherDevices, RejectSelectionsThatDoNotFit) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  const Result<PlacedMoe> few = make_on(spec, {"cpu", "cpu"}, {2}, devices_of(2));
  ASSERT_FALSE(few);
  EXPECT_THAT(few.error().to_string(), HasSubstr("a selection for each of 2 devices with slots"));
  std::vector<Selection> unlike{select_slots(spec, "cpu", 1), select_slots(spec, "reference", 1)};
  if (unlike[0].plan->backend->layout == unlike[1].plan->backend->layout) GTEST_SKIP() << "alike";
  const Result<PlacedMoe> mixed =
      PlacedMoe::make(conformance::random_weights(spec, 3),
                      select(request_of(spec, "cpu"), Machine::here()), unlike, devices_of(2));
  ASSERT_FALSE(mixed);
  EXPECT_THAT(mixed.error().to_string(), HasSubstr("devices with slots that pack experts alike"));
}

// Experts of equal use go to both devices in turn, and a hot device gets none.
TEST(OtherDevices, PolicyDividesWorkEvenly) {
  constexpr int64_t kMany = 64;
  SlotPolicy policy(kMany, 8, {{.host_us = 10, .slot_us = 1, .move_us = 0, .bytes = 1}, 8});
  ExpertSlots slots(kMany, 8);
  const std::vector<int64_t> firsts{0, 4};
  std::vector<int32_t> ids{10, 11, 12, 13, 14, 15, 16, 17};
  policy.observe(ids);
  int on_first = 0, on_second = 0;
  for (const ExpertMove& move : policy.decide(slots, 8, firsts))
    ++(move.slot < 4 ? on_first : on_second);
  EXPECT_EQ(on_first, 4);
  EXPECT_EQ(on_second, 4);
  for (int32_t slot = 0; slot < 3; ++slot) {
    slots.begin(slot, slot);
    slots.finish(slot);
  }
  for (int step = 0; step < 4; ++step) policy.observe(std::vector<int32_t>{0, 1, 2, 20, 21});
  for (const ExpertMove& move : policy.decide(slots, 2, firsts)) EXPECT_GE(move.slot, 4);
}

TEST(OtherDevices, HostAndDeviceWaitsAreCounted) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  const auto devices = devices_of(2);
  PlacedMoe moe = must(make_on(spec, {"cpu", "cpu"}, {1, 1}, devices));
  (void)output_of(moe, batch_of(spec));
  PlacementCounts waits;
  devices->add_waits(waits);
  EXPECT_GT(waits.slots_wait_us, 0) << "the host's part runs after that of a CPU device";
  EXPECT_GE(waits.host_waits_us, 0);
}

}  // namespace
}  // namespace moracle::other_devices_test
