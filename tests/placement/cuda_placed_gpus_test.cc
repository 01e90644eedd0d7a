// Layers with slots on two NVIDIA GPUs of one process.
#include <gmock/gmock.h>

#include <algorithm>

#include "base/try.h"
#include "placement/cuda_placed_layers.h"

namespace moracle::cuda_placed_gpus_test {
namespace {

using namespace testing;

// The parameter is the index of the second GPU. 0: the first one again, so that a machine with one
// GPU tests the order of calls.
class CudaPlacedGpus : public CudaPlacedTest, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    CudaPlacedTest::SetUp();
    if (IsSkipped()) return;
    const auto second = open_device(second_name());
    if (!second) GTEST_SKIP() << "needs two NVIDIA GPUs: " << second.error().to_string();
  }
  static std::string second_name() { return "cuda:" + std::to_string(GetParam()); }
  std::shared_ptr<DevicePair> two_gpus() {
    auto devices = device_pair();
    devices->add(std::make_shared<Workspace>(must(open_device(second_name()))));
    return devices;
  }
  Result<PlacedMoe> make_on_two(const LayerSpec& spec, const std::vector<int64_t>& slots,
                                const std::shared_ptr<DevicePair>& devices, uint64_t seed = 3) {
    std::vector<Selection> selections;
    for (const int64_t count : slots) selections.push_back(in_slots(spec, count));
    return PlacedMoe::make(conformance::random_weights(spec, seed), on_host(spec), selections,
                           devices);
  }
  /// However the experts are divided: each within the bounds of both rows. The part of each device,
  /// the sum that the host adds and the whole are rounded to bf16, and none exceeds the sum of the
  /// parts of single experts.
  conformance::Expected expected_of_parts(const PlacedMoe& moe, const DescribedWeights& weights,
                                          const TokenBatch& batch) {
    conformance::Expected want = expected_of_both(moe, weights, batch);
    for (int32_t expert = 0; expert < kExperts; ++expert) {
      std::vector<int32_t> ids = batch.ids;
      std::replace_if(
          ids.begin(), ids.end(), [&](int32_t id) { return id != expert; }, -1);
      const conformance::Expected part =
          conformance::expected(weights.spec, weights, batch.hidden, ids, batch.weights, {}, {},
                                conformance::precision_of(moe.slots_plan()));
      for (size_t i = 0; i < want.bound.size(); ++i)
        want.bound[i] += 3 * 0x1p-8 * std::fabs(part.output[i]);
    }
    return want;
  }
};

TEST_P(CudaPlacedGpus, StayWithinBoundsForEverySchemeAndNumberOfSlots) {
  const auto devices = two_gpus();
  int compared = 0;
  for (const Scheme& scheme : conformance::schemes()) {
    LayerSpec spec = layer_of_scheme(scheme);
    if (!served(spec)) continue;
    SCOPED_TRACE(name(scheme));
    const DescribedWeights weights = conformance::random_weights(spec, 3);
    spec = weights.spec;
    const TokenBatch batch = batch_of(spec);
    const auto make = [&](const std::vector<int64_t>& slots) {
      return make_on_two(spec, slots, devices);
    };
    if (const Result<PlacedMoe> made = make({1, 1}); !made) {
      EXPECT_THAT(made.error().to_string(), ::testing::HasSubstr("packed again"));
      continue;
    }
    for (const std::vector<int64_t>& slots : {std::vector<int64_t>{1, 2}, {0, 3}, {2, 0}, {3, 3}}) {
      std::vector<float> runs[2];
      conformance::Expected want;
      for (std::vector<float>& got : runs) {
        PlacedMoe moe = must(make(slots));
        for (int64_t slot = 0; slot < slots[0] + slots[1]; ++slot)
          must(moe.place((slot * 5 + 1) % kExperts, slot));
        got = output_of(moe, batch);
        const PlacementCounts counts = moe.counts();
        ASSERT_EQ(counts.hits_of_devices.size(), 2U);
        for (size_t d = 0; d < 2; ++d) EXPECT_EQ(counts.hits_of_devices[d] > 0, slots[d] > 0);
        EXPECT_EQ(counts.hits_of_devices[0] + counts.hits_of_devices[1], counts.hits);
        want = expected_of_parts(moe, weights, batch);
      }
      EXPECT_LE(share_of_bound(want, runs[0]), 1);
      EXPECT_EQ(runs[0], runs[1]) << "equal placements, equal bits";
      ++compared;
    }
  }
  EXPECT_GE(compared, 80);
}

TEST_P(CudaPlacedGpus, MovesBesideCallsKeepBounds) {
  const LayerSpec spec = layer_of_scheme(*parse_scheme("int4-w4a16-g32"));
  const DescribedWeights weights = conformance::random_weights(spec, 3);
  const auto devices = two_gpus();
  PlacedMoe moe = must(make_on_two(spec, {1, 2}, devices));
  moe.set_policy({{.host_us = 10, .slot_us = 1, .move_us = 0, .bytes = 1}, 1});
  for (uint32_t step = 0; step < 200; ++step) {
    const TokenBatch batch = batch_of(spec, 1 + step % 2, step);
    EXPECT_LE(share_of_bound(expected_of_parts(moe, weights, batch), output_of(moe, batch)), 1)
        << "step " << step;
    must(devices->move(2));
  }
  const PlacementCounts counts = moe.counts();
  EXPECT_GT(counts.moves, 20);
  EXPECT_GT(counts.hits_of_devices[0], 10);
  EXPECT_GT(counts.hits_of_devices[1], 10);
  EXPECT_GT(counts.misses, 20);
  PlacementCounts waits;
  devices->add_waits(waits);
  EXPECT_GT(waits.slots_wait_us, 0);
  EXPECT_GT(waits.host_waits_us, 0);
}

// Two layers, one after the other, as a model's step.
TEST_P(CudaPlacedGpus, ReplaysHaveBitsOfCalls) {
  const LayerSpec spec = layer_of_scheme(*parse_scheme("int4-w4a16-g32"));
  const auto devices = two_gpus();
  PlacedMoe one = must(make_on_two(spec, {1, 2}, devices)),
            other = must(make_on_two(spec, {2, 1}, devices, 4));
  for (int64_t slot = 0; slot < 3; ++slot)
    must(one.place(slot + 1, slot)), must(other.place(slot + 2, slot));
  const TokenBatch batch = batch_of(spec, 2);
  const OnGpu first = put(spec, batch), second = put(spec, batch);
  const auto step = [&]() -> Status {
    MORACLE_CHECK(
        one.apply(first.in(), {first.ids.as<int32_t>()}, {first.weights.as<float>()}, first.out()));
    return other.apply(first.out(), {second.ids.as<int32_t>()}, {second.weights.as<float>()},
                       second.out());
  };
  must(step());
  const std::vector<float> want = result(second);
  const std::unique_ptr<Graph> graph = must(devices->record(step));
  ASSERT_NE(graph, nullptr);
  for (int replay = 0; replay < 50; ++replay) {
    must(graph->replay());
    ASSERT_EQ(result(second), want) << "replay " << replay;
  }
  // A replay reads the placement of its time.
  must(one.place(5, 1));
  must(graph->replay());
  const std::vector<float> moved = result(second);
  must(step());
  EXPECT_EQ(result(second), moved);
}

INSTANTIATE_TEST_SUITE_P(SecondGpu, CudaPlacedGpus, ::testing::Values(0, 1));

}  // namespace
}  // namespace moracle::cuda_placed_gpus_test
