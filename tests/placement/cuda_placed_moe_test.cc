// Layers on the CPU and an NVIDIA GPU.
#include <gmock/gmock.h>

#include "base/try.h"
#include "layout/unpack.h"
#include "moe/moe_access.h"
#include "placement/cuda_placed_layers.h"

namespace moracle::cuda_placed_moe_test {
namespace {

using namespace testing;

constexpr int64_t kExperts = CudaPlacedTest::kExperts;

class CudaPlacedMoe : public CudaPlacedTest {
 protected:
  // A layer of sizes that Hopper's kernels take, with all slots filled. Skips without such a GPU.
  void check_on_hopper(const char* scheme, int64_t num_slots) {
    SCOPED_TRACE(scheme);
    const LayerSpec spec{.name = "experts",
                         .num_experts = kExperts,
                         .hidden_size = 512,
                         .intermediate_size = 256,
                         .top_k = 3,
                         .scheme = *parse_scheme(scheme)};
    const Selection slots = in_slots(spec, num_slots, "cuda-sm90");
    if (!slots.plan) GTEST_SKIP() << "needs cuda-sm90";
    const DescribedWeights weights = conformance::random_weights(spec, 3);
    PlacedMoe moe = must(
        PlacedMoe::make(conformance::random_weights(spec, 3), on_host(spec), slots, device_pair()));
    for (int64_t slot = 0; slot < num_slots; ++slot)
      must(moe.place((slot * 5 + 1) % kExperts, slot));
    for (const int64_t tokens : {int64_t{1}, kTokens}) {
      const TokenBatch batch = batch_of(spec, tokens);
      EXPECT_LE(share_of_bound(expected_of_both(moe, weights, batch), output_of(moe, batch)), 1)
          << tokens << " tokens";
    }
  }
};

TEST_F(CudaPlacedMoe, GpuPacksExpertsAsHostThreadsDo) {
  int compared = 0;
  for (const Scheme& scheme : conformance::schemes()) {
    LayerSpec spec = layer_of_scheme(scheme);
    for (const bool bias : {false, true}) {
      spec.bias = bias;
      if (!served(spec)) continue;
      SCOPED_TRACE(name(scheme) + (bias ? " with biases" : ""));
      FusedMoe all = must(FusedMoe::make(conformance::random_weights(spec, 3), on_host(spec),
                                         must(open_device("cpu", 2))));
      auto made =
          MoeAccess::make_slots(all, in_slots(spec, 3), std::make_shared<Workspace>(device_));
      if (!made) continue;  // a layout that cannot be packed again
      FusedMoe slots = *std::move(made);
      const int64_t bytes = MoeAccess::expert_bytes(slots);
      const auto transfers =
          must(kernel_device(*device_).transfers(MoeAccess::expert_bytes(all), bytes));
      const std::vector<MoeAccess::ExpertInSlot> calls[] = {{{4, 0}}, {{1, 2}, {2, 0}, {5, 1}}};
      for (const auto& experts : calls) {
        const auto matrices = MoeAccess::matrices_of(all, slots, experts);
        const int64_t number = must(transfers->begin(matrices, must(transfers->mark({})), {}));
        must(transfers->wait(number, {}));
        for (const ExpertMatrix& m : matrices) {
          const size_t size = m.to->sections(*m.to_shape).bytes;
          std::vector<std::byte> got(size), want(size);
          ThreadPool pool(1);
          must(repack({m.from, m.from_shape, m.packed, 0, m.from_shape->n}, *m.to, *m.to_shape,
                      pool, want.data()));
          must(device_->download(got.data(), m.out, size));
          must(device_->synchronize());
          EXPECT_EQ(got, want) << experts.size() << " experts of " << m.from->name;
          ++compared;
        }
      }
    }
  }
  EXPECT_GE(compared, 80);
}

TEST_F(CudaPlacedMoe, StaysWithinBoundsForEverySchemeAndNumberOfSlots) {
  int compared = 0;
  for (const Scheme& scheme : conformance::schemes()) {
    LayerSpec spec = layer_of_scheme(scheme);
    if (!served(spec)) continue;
    SCOPED_TRACE(name(scheme));
    const DescribedWeights weights = conformance::random_weights(spec, 3);
    spec = weights.spec;
    const TokenBatch batch = batch_of(spec);
    for (const int64_t num_slots : {int64_t{0}, kExperts / 2, kExperts}) {
      Result<PlacedMoe> made = PlacedMoe::make(conformance::random_weights(spec, 3), on_host(spec),
                                               in_slots(spec, num_slots), device_pair());
      if (!made) {
        EXPECT_THAT(made.error().to_string(), ::testing::HasSubstr("packed again"));
        break;
      }
      for (int64_t slot = 0; slot < num_slots; ++slot)
        must(made->place((slot * 5 + 1) % kExperts, slot));
      EXPECT_LE(share_of_bound(expected_of_both(*made, weights, batch), output_of(*made, batch)), 1)
          << num_slots << " slots";
      ++compared;
    }
  }
  EXPECT_GE(compared, 60);
}

// TMA describes no matrix without experts.
TEST_F(CudaPlacedMoe, LayersOfHopperNeedNoSlots) {
  for (const char* const scheme : {"bf16", "int4-w4a16-g128", "fp8-w8a8-channel", "mxfp4-w4a16"})
    check_on_hopper(scheme, 0);
}

// Weights that Hopper's kernels read in another form than those of Ampere.
TEST_F(CudaPlacedMoe, ExpertsInSlotsOfHopperStayWithinBounds) {
  for (const char* const scheme : {"bf16", "mxfp4-w4a16", "mxfp8-w8a16", "mxfp8-w8a8",
                                   "nvfp4-w4a16", "nvfp4-w4a8", "nvfp4-w4afp8"})
    check_on_hopper(scheme, kExperts);
}

TEST_F(CudaPlacedMoe, MovesBesideCallsKeepBounds) {
  const LayerSpec spec = layer_of_scheme(*parse_scheme("int4-w4a16-g32"));
  const DescribedWeights weights = conformance::random_weights(spec, 3);
  const auto devices = device_pair();
  PlacedMoe moe = make(spec, 2, 3, devices);
  moe.set_policy({{.host_us = 10, .slot_us = 1, .move_us = 0, .bytes = 1}, 1});
  for (uint32_t step = 0; step < 200; ++step) {
    const TokenBatch batch = batch_of(spec, 1 + step % 2, step);
    EXPECT_LE(share_of_bound(expected_of_both(moe, weights, batch), output_of(moe, batch)), 1)
        << "step " << step;
    must(devices->move(2));
  }
  EXPECT_GT(moe.counts().moves, 20);
  EXPECT_GT(moe.counts().hits, 20);
  EXPECT_GT(moe.counts().misses, 20);
}

// Two layers, one after the other, as a model's step.
TEST_F(CudaPlacedMoe, ReplaysHaveBitsOfCalls) {
  const LayerSpec spec = layer_of_scheme(*parse_scheme("int4-w4a16-g32"));
  const auto devices = device_pair();
  PlacedMoe one = make(spec, 2, 3, devices), other = make(spec, 3, 4, devices);
  must(one.place(1, 0)), must(other.place(2, 1));
  const TokenBatch batch = batch_of(spec, 2);
  const OnGpu first = put(spec, batch);
  OnGpu second = put(spec, batch);
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
  must(one.place(5, 0));
  must(graph->replay());
  const std::vector<float> moved = result(second);
  must(step());
  EXPECT_EQ(result(second), moved);
}

TEST_F(CudaPlacedMoe, StreamedCallsHaveBitsOfGpu) {
  for (const char* scheme : {"int4-w4a16-g32", "bf16", "fp8-w8a8-b128x128"}) {
    const Result<Scheme> parsed = parse_scheme(scheme);
    if (!parsed || !served(layer_of_scheme(*parsed))) continue;
    SCOPED_TRACE(scheme);
    const LayerSpec spec = layer_of_scheme(*parsed);
    const auto devices = device_pair();
    for (const int64_t share : {int64_t{2}, kExperts}) {
      std::vector<PlacedMoe> layers;
      for (const uint64_t seed : {3, 4, 5}) {
        layers.push_back(make(spec, 2, seed, devices));
        must(layers.back().stream(in_slots(spec, share)));
        layers.back().set_stream_from(4);
        must(layers.back().place(4, 1));
      }
      const TokenBatch batch = batch_of(spec);
      for (int step = 0; step < 4; ++step) {
        std::vector<OnGpu> calls;
        for (PlacedMoe& layer : layers) {
          calls.push_back(put(spec, batch));
          enqueue(layer, calls.back());
        }
        for (size_t l = 0; l < layers.size(); ++l) {
          const std::vector<float> got = result(calls[l]);
          const DescribedWeights weights = conformance::random_weights(spec, 3 + l);
          EXPECT_LE(share_of_bound(expected_of_both(layers[l], weights, batch), got), 1);
          if (share < kExperts) continue;
          FusedMoe whole = must(
              FusedMoe::make(conformance::random_weights(spec, 3 + l),
                             select(request_of(spec, Platform::kCuda), Machine::here()), device_));
          EXPECT_EQ(got, output_of(whole, batch));
        }
      }
    }
  }
}

TEST_F(CudaPlacedMoe, MeasuresTimes) {
  const LayerSpec spec = layer_of_scheme(*parse_scheme("int4-w4a16-g32"));
  PlacedMoe moe = make(spec, 2);
  must(moe.stream(in_slots(spec, kExperts)));
  const PlacedTimes times = must(moe.measure());
  EXPECT_GT(times.stream_us, 0);
  EXPECT_FALSE(times.ways.empty());
}

}  // namespace
}  // namespace moracle::cuda_placed_moe_test
