// Layers on two devices.
#include <gmock/gmock.h>

#include "placement/placed_layers.h"
#include "support/sample.h"

namespace moracle::placed_moe_test {
namespace {

using namespace testing;
using namespace testing::placed;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PlacedMoe, MatchesOneDeviceForEverySchemeRowsAndNumberOfSlots) {
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
      const conformance::Expected want = expected_of_both(weights, batch, rows);
      for (const int64_t num_slots : {int64_t{0}, int64_t{1}, kExperts / 2, kExperts}) {
        PlacedMoe moe = must(make(spec, rows, num_slots));
        // All experts in their own order: the sum has the order of one device.
        for (int64_t slot = 0; slot < num_slots; ++slot)
          must(moe.place(num_slots == kExperts ? slot : (slot * 5 + 1) % kExperts, slot));
        const std::vector<float> got = output_of(moe, batch);
        EXPECT_LE(share_of_bound(want, got), 1) << num_slots << " slots";
        const QuantKey& key = scheme.weight;
        const bool folded = rows.slots == "reference" && key.minimums && !key.symmetric &&
                            key.scale_dtype != DType::kI8;  // the host's zero points
        if (num_slots == 0 || (num_slots == kExperts && !folded)) {
          const std::string& row = num_slots == 0 ? rows.host : rows.slots;
          EXPECT_EQ(got, output_on(row, conformance::random_weights(spec, 3), batch));
        }
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, testing::Sample::kStep == 1 ? 300 : 40);
}

TEST(PlacedMoe, StaysWithinBoundsWhileExpertsMoveAtEveryStep) {
  for (const Scheme& scheme : {*parse_scheme("int4-w4a16-g32"), *parse_scheme("int8-w8a8"), kStatic,
                               *parse_scheme("bf16")}) {
    const LayerSpec spec = layer_of(scheme);
    const DescribedWeights weights = conformance::random_weights(spec, 3);
    for (const RowNames& rows : pairs_of_rows(spec)) {
      SCOPED_TRACE(name(scheme) + ", " + rows.host + " and " + rows.slots);
      std::vector<std::vector<float>> runs[2];
      for (std::vector<std::vector<float>>& run : runs) {
        const auto devices = device_pair();
        PlacedMoe moe = must(make(spec, rows, 2, 3, devices));
        moe.set_policy({{.host_us = 10, .slot_us = 1, .move_us = 0, .bytes = 1}, 1});
        for (uint32_t step = 0; step < 24; ++step) {
          TokenBatch batch = random_batch(spec, 1 + step % 2, step);
          run.push_back(output_of(moe, batch));
          EXPECT_LE(share_of_bound(expected_of_both(weights, batch, rows), run.back()), 1)
              << "step " << step;
          must(devices->move(2));
        }
        const PlacementCounts counts = moe.counts();
        EXPECT_GT(counts.hits, 3);
        EXPECT_GT(counts.misses, 5);
        EXPECT_GT(counts.moves, 5);
        EXPECT_EQ(counts.bytes_moved, counts.moves * moe.slot_bytes());
      }
      EXPECT_EQ(runs[0], runs[1]) << "equal calls, equal moves, equal bits";
    }
  }
}

/// A batch whose tokens choose these experts only.
TokenBatch batch_for(const LayerSpec& spec, std::vector<int32_t> experts) {
  TokenBatch batch = random_batch(spec, 2);
  for (size_t i = 0; i < batch.ids.size(); ++i) batch.ids[i] = experts[i % experts.size()];
  return batch;
}

TEST(PlacedMoe, MovesServeCallsAfterNextMoves) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  const auto devices = device_pair();
  PlacedMoe one = must(make(spec, {"cpu", "cpu"}, 1, 3, devices));
  PlacedMoe other = must(make(spec, {"cpu", "cpu"}, 1, 4, devices));
  one.set_policy(kEager);
  const TokenBatch batch = batch_for(spec, {4});
  (void)output_of(one, batch);
  EXPECT_EQ(must(devices->move(3)), 1) << "one slot";
  EXPECT_THAT(one.placed(), ElementsAre(4));
  EXPECT_EQ(one.counts().moves, 0);
  (void)output_of(one, batch);
  EXPECT_EQ(one.counts().hits, 0) << "calls of one step find the same experts";
  (void)output_of(other, batch);
  EXPECT_EQ(must(devices->move(0)), 0);
  EXPECT_EQ(one.counts().moves, 1);
  const int64_t misses = one.counts().misses;
  (void)output_of(one, batch);
  EXPECT_EQ(one.counts().misses, misses);
}

TEST(PlacedMoe, PlaceAndEvictReplacePendingMove) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  const TokenBatch batch = batch_for(spec, {4}), all = batch_of(spec);
  for (const bool evict : {false, true}) {
    const auto devices = device_pair();
    PlacedMoe moe = must(make(spec, {"cpu", "reference"}, 2, 3, devices)),
              want = must(make(spec, {"cpu", "reference"}, 2));
    moe.set_policy(kEager);
    (void)output_of(moe, batch);
    ASSERT_EQ(must(devices->move(1)), 1);
    (void)output_of(moe, batch);
    evict ? must(moe.evict(0)) : must(moe.place(2, 0));
    if (!evict) must(want.place(2, 0));
    EXPECT_EQ(moe.placed(), want.placed());
    for (int call = 0; call < 3; ++call) EXPECT_EQ(output_of(moe, all), output_of(want, all));
    EXPECT_EQ(moe.counts().moves, want.counts().moves);
  }
}

TEST(PlacedMoe, PlaceDoesNotDisturbPendingMoveOfAnotherLayer) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  const auto devices = device_pair();
  PlacedMoe one = must(make(spec, {"cpu", "reference"}, 1, 3, devices));
  PlacedMoe want = must(make(spec, {"cpu", "reference"}, 1, 3));
  must(want.place(4, 0));
  one.set_policy(kEager);
  const TokenBatch batch = batch_for(spec, {4});
  {
    PlacedMoe other = must(make(spec, {"cpu", "reference"}, 1, 4, devices));
    other.set_policy(kEager);
    (void)output_of(one, batch);
    ASSERT_EQ(must(devices->move(1)), 1);
    (void)output_of(one, batch);
    must(other.place(2, 0));
    (void)output_of(other, batch);
    ASSERT_EQ(must(devices->move(1)), 1) << "that of `one` has arrived";
  }  // ends with its move pending
  EXPECT_EQ(must(devices->move(0)), 0);
  EXPECT_EQ(one.counts().moves, 1);
  EXPECT_EQ(output_of(one, batch_of(spec)), output_of(want, batch_of(spec)));
}

TEST(PlacedMoe, BytesInFlightLimitMoves) {
  const LayerSpec spec = layer_of("bf16");
  const int64_t bytes = must(make(spec, {"cpu", "cpu"}, 1)).slot_bytes();
  for (const int64_t experts : {0, 1, 2}) {
    const auto devices = std::make_shared<DevicePair>(
        std::make_shared<Workspace>(must(open_device("cpu", 1))),
        std::make_shared<Workspace>(must(open_device("cpu", 1))), experts * bytes + bytes / 2);
    PlacedMoe moe = must(make(spec, {"cpu", "cpu"}, 4, 3, devices));
    moe.set_policy(kEager);
    (void)output_of(moe, batch_of(spec));
    EXPECT_EQ(must(devices->move(4)), std::max<int64_t>(experts, 1));
  }
}

/// Calls whose experts come in shares of `share` experts, for every size of the share.
TEST(PlacedMoe, StreamedCallsHaveBitsOfDeviceWithSlots) {
  for (const Scheme& scheme : {*parse_scheme("int4-w4a16-g32"), *parse_scheme("int8-w8a8"), kStatic,
                               *parse_scheme("bf16")}) {
    const LayerSpec spec = layer_of(scheme);
    const TokenBatch batch = batch_of(spec), few = random_batch(spec, 2);
    for (const int64_t share : {int64_t{1}, int64_t{2}, int64_t{4}, kExperts}) {
      SCOPED_TRACE(name(scheme) + ", shares of " + std::to_string(share));
      const auto devices = device_pair();
      std::vector<PlacedMoe> layers;
      for (const uint64_t seed : {3, 4}) {
        layers.push_back(must(make(spec, {"cpu", "reference"}, 2, seed, devices)));
        must(layers.back().stream(select_slots(spec, "reference", share)));
        layers.back().set_stream_from(batch.tokens);
        must(layers.back().place(4, 1));
      }
      for (int step = 0; step < 2; ++step) {
        for (size_t l = 0; l < layers.size(); ++l) {
          const std::vector<float> got = output_of(layers[l], batch);
          const DescribedWeights weights = conformance::random_weights(spec, 3 + l);
          if (share == kExperts) {
            EXPECT_EQ(got, output_on("reference", conformance::random_weights(spec, 3 + l), batch));
          }
          EXPECT_LE(share_of_bound(expected_of(weights, batch, "reference"), got), 1);
          (void)output_of(layers[l], few);
        }
      }
      for (const PlacedMoe& layer : layers) {
        const PlacementCounts counts = layer.counts();
        EXPECT_EQ(counts.streamed_calls, 2);
        EXPECT_GT(counts.misses, 0) << "short calls stay on the host";
        // The expert in a slot does not cross again; a share that is still there does not either.
        EXPECT_LE(counts.bytes_streamed, 2 * (kExperts - 1) * layer.slot_bytes());
        EXPECT_GE(counts.bytes_streamed, (kExperts - 1) * layer.slot_bytes());
      }
    }
  }
}

TEST(PlacedMoe, StreamedCallsUseNewWeightsAfterSwap) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  PlacedMoe moe = must(make(spec, {"cpu", "reference"}, 1));
  must(moe.stream(select_slots(spec, "reference", kExperts)));
  moe.set_stream_from(1);
  const TokenBatch batch = batch_of(spec);
  (void)output_of(moe, batch);
  must(moe.swap(must(moe.pack(conformance::random_weights(spec, 77)))));
  EXPECT_EQ(output_of(moe, batch),
            output_on("reference", conformance::random_weights(spec, 77), batch));
}

TEST(PlacedMoe, MeasuresTimesWithoutChangingResults) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  PlacedMoe moe = must(make(spec, {"cpu", "reference"}, 2));
  must(moe.stream(select_slots(spec, "reference", 4)));
  must(moe.place(3, 0));
  const TokenBatch batch = batch_of(spec);
  const std::vector<float> before = output_of(moe, batch);
  const PlacedTimes times = must(moe.measure());
  EXPECT_GT(times.costs.host_us, 0);
  EXPECT_GT(times.costs.move_us, 0);
  EXPECT_GT(times.stream_us, 0);
  EXPECT_GT(times.costs.slot_us, 0);
  EXPECT_EQ(times.ways.size(), static_cast<size_t>(kTokens));
  EXPECT_GE(times.balanced_slots, 0);
  EXPECT_LE(times.balanced_slots, kExperts);
  EXPECT_EQ(times.costs.bytes, moe.slot_bytes());
  EXPECT_EQ(output_of(moe, batch), before);
  EXPECT_THAT(moe.placed(), ElementsAre(3, -1));
}

TEST(PlacedMoe, BitsDependOnPlacementAlone) {
  const LayerSpec spec = layer_of("int4-w4a8-g32");
  const RowNames rows{"cpu", "cpu"};
  PlacedMoe a = must(make(spec, rows, 3)), b = must(make(spec, rows, 3));
  for (const auto& [expert, slot] : {std::pair{4, 0}, {1, 1}, {5, 2}}) must(a.place(expert, slot));
  // The same experts after a detour.
  for (const auto& [expert, slot] :
       {std::pair{0, 0}, {1, 2}, {3, 1}, {5, 0}, {4, 0}, {1, 1}, {5, 2}})
    must(b.place(expert, slot));
  EXPECT_THAT(a.placed(), ElementsAre(4, 1, 5));
  EXPECT_THAT(b.placed(), ElementsAre(4, 1, 5));
  for (uint32_t seed = 0; seed < 4; ++seed)
    EXPECT_EQ(output_of(a, batch_of(spec, seed)), output_of(b, batch_of(spec, seed)));
}

TEST(PlacedMoe, EvictedExpertReturnsToHost) {
  const LayerSpec spec = layer_of("bf16");
  const RowNames rows{"cpu", "reference"};
  PlacedMoe moe = must(make(spec, rows, 2));
  const TokenBatch batch = batch_of(spec);
  const std::vector<float> on_host = output_of(moe, batch);
  must(moe.place(2, 0));
  must(moe.place(2, 1));
  EXPECT_THAT(moe.placed(), ElementsAre(-1, 2)) << "one slot for an expert";
  must(moe.place(2, 1));
  EXPECT_EQ(moe.counts().moves, 2) << "it is there already";
  must(moe.evict(1));
  EXPECT_THAT(moe.placed(), Each(-1));
  EXPECT_EQ(output_of(moe, batch), on_host);
}

TEST(PlacedMoe, SwapFillsSlotsFromNewWeights) {
  for (const Scheme& scheme : {*parse_scheme("int4-w4a16-g32"), kStatic}) {
    const LayerSpec spec = layer_of(scheme);
    const RowNames rows{"cpu", "reference"};
    PlacedMoe moe = must(make(spec, rows, 2)), cold = must(make(spec, rows, 2, 77));
    for (PlacedMoe* one : {&moe, &cold}) {
      must(one->place(3, 0));
      must(one->place(0, 1));
    }
    const TokenBatch batch = batch_of(spec);
    const std::vector<float> before = output_of(moe, batch);
    PackedWeights packed = must(moe.pack(conformance::random_weights(spec, 77)));
    EXPECT_EQ(output_of(moe, batch), before) << "packing changes nothing";
    must(moe.swap(std::move(packed)));
    EXPECT_THAT(moe.placed(), ElementsAre(3, 0));
    EXPECT_EQ(output_of(moe, batch), output_of(cold, batch));
  }
}

TEST(PlacedMoe, ReportsUnknownExpertsOfDeviceWithSlots) {
  const LayerSpec spec = layer_of("bf16");
  const auto device = must(open_device("cpu", 1));
  const auto pair =
      std::make_shared<DevicePair>(std::make_shared<Workspace>(must(open_device("cpu", 1))),
                                   std::make_shared<Workspace>(device));
  PlacedMoe moe = must(PlacedMoe::make(conformance::random_weights(spec, 3),
                                       select(request_of(spec, "cpu"), Machine::here()),
                                       select_slots(spec, "cpu", 2), pair));
  TokenBatch batch = batch_of(spec), without = batch;
  batch.ids[4] = kExperts, without.ids[4] = -1;
  // In this order: the next call that waits for the device gets its error.
  const std::vector<float> want = output_of(moe, without);
  EXPECT_EQ(output_of(moe, batch), want);
  const Status reported = device->synchronize();
  ASSERT_FALSE(reported);
  EXPECT_THAT(reported.error().to_string(), HasSubstr("layers.3.experts"));
  EXPECT_TRUE(device->synchronize()) << "once";
}

std::string error_of(const Result<PlacedMoe>& made) {
  return made ? "accepted" : made.error().to_string();
}

TEST(PlacedMoe, RejectsLayersThatItCannotPlace) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  const auto made = [&](auto change_host, auto change_slots, LayerSpec of_slots) {
    Request host = request_of(spec, "cpu"), slots = request_of(of_slots, "cpu");
    slots.parallel = must(slots_of(kExperts, 2));
    change_host(host);
    change_slots(slots);
    return error_of(PlacedMoe::make(conformance::random_weights(spec, 3),
                                    select(host, Machine::here()), select(slots, Machine::here()),
                                    device_pair()));
  };
  const auto same = [](Request&) {};
  EXPECT_EQ(made(same, same, spec), "accepted");
  EXPECT_THAT(
      made([](Request& r) { r.lora_rank = 4; }, same, spec),
      HasSubstr(
          "layers.3.experts: needs slots planned for the adapters of the layer; they are for 0 "
          "of rank 0"));
  EXPECT_THAT(made(
                  same, [](Request& r) { r.parallel.format = ActivationFormat::kBatched; }, spec),
              HasSubstr("needs a plan for tokens with ids"));
  EXPECT_THAT(made(same, same, layer_of("int8-w8a8")), HasSubstr("slots planned for this layer"));
  EXPECT_THAT(made(
                  same, [](Request& r) { r.backend = "nowhere"; }, spec),
              HasSubstr("nowhere"));
  EXPECT_THAT(slots_of(4, 5).error().to_string(), HasSubstr("slots: needs 0 to 4"));

  // The canonical layout keeps no factors of scales, which vnni16 stores.
  const LayerSpec steps = odd_layer(*parse_scheme("int4-w4a16-g16-s8"), kExperts, 3);
  EXPECT_THAT(error_of(make(steps, {"reference", "cpu"}, 2)),
              HasSubstr("needs a backend in host memory whose weights can be packed again for cpu; "
                        "it is reference with layout canonical"));
}

TEST(PlacedMoe, RejectsCallsAndMovesThatDoNotFit) {
  const LayerSpec spec = layer_of("bf16");
  PlacedMoe moe = must(make(spec, {"cpu", "cpu"}, 2));
  TokenBatch batch = random_batch(spec, kTokens + 1);
  std::vector<float> output(batch.hidden.size());
  const auto apply = [&](const int32_t* ids, int64_t tokens) {
    const Status done =
        moe.apply(Matrix::f32(batch.hidden.data(), tokens, spec.hidden_size), {ids},
                  {batch.weights.data()}, Matrix::f32(output.data(), tokens, spec.hidden_size));
    return done ? "accepted" : done.error().to_string();
  };
  EXPECT_THAT(apply(batch.ids.data(), kTokens + 1), HasSubstr("[at most 9, 70]"));
  EXPECT_THAT(apply(nullptr, 1), HasSubstr("topk_ids: needs an address"));
  EXPECT_EQ(apply(batch.ids.data(), 0), "accepted");
  EXPECT_THAT(moe.place(kExperts, 0).error().to_string(), HasSubstr("an expert below 6"));
  EXPECT_THAT(moe.place(0, 2).error().to_string(), HasSubstr("a slot below 2"));
  EXPECT_THAT(moe.evict(-1).error().to_string(), HasSubstr("a slot below 2"));
  EXPECT_THAT(moe.placed(), Each(-1));
}

// Whichever allocation the device refuses, making the layer is an error, and nothing is left.
TEST(PlacedMoe, ReportsRefusedMemory) {
  const LayerSpec spec = layer_of("int4-w4a16-g32");
  int refusals = 0;
  for (int allowed = 0; allowed < 64; ++allowed) {
    int taken = 0, held = 0;
    DeviceOptions options{.threads = 1};
    options.allocate = [&](size_t bytes) -> void* {
      if (taken++ >= allowed) return nullptr;
      ++held;
      return std::aligned_alloc(
          kMemoryAlignment, (bytes + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment);
    };
    options.free = [&](void* data, size_t) { --held, std::free(data); };
    {
      Result<std::shared_ptr<Device>> device = open_device("cpu", options);
      if (!device) continue;
      const auto pair =
          std::make_shared<DevicePair>(std::make_shared<Workspace>(must(open_device("cpu", 1))),
                                       std::make_shared<Workspace>(*std::move(device)));
      const std::string error = error_of(PlacedMoe::make(
          conformance::random_weights(spec, 3), select(request_of(spec, "cpu"), Machine::here()),
          select_slots(spec, "cpu", 2), pair));
      if (error == "accepted") {
        EXPECT_GE(refusals, 5);
        return;
      }
      ++refusals;
      EXPECT_THAT(error, HasSubstr("memory"));
    }
    EXPECT_EQ(held, 0) << "after " << allowed << " allocations";
  }
  FAIL() << "needs a number of allocations with which the layer is made";
}

}  // namespace
}  // namespace moracle::placed_moe_test
