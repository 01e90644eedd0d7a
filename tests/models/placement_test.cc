// Models whose experts lie in host memory and in slots.
#include <gmock/gmock.h>

#include "logit_bounds.h"
#include "models/placed_models.h"
#include "support/sample.h"
#include "support/temporary_folder.h"

namespace moracle::placement_test {
namespace {

using namespace testing;
using namespace testing::placed;
using ::testing::HasSubstr;

TEST(PlacedModel, MemoryForWholeModelNeedsNoSlots) {
  const Checkpoint checkpoint = must(Checkpoint::open(golden_folder("qwen3_moe")));
  ModelOptions options{.max_num_tokens = 32};
  options.cache_bytes = 1 << 20;
  options.device_memory = must(plan(checkpoint, options)).total_bytes() + options.cache_bytes;
  EXPECT_EQ(must(plan(checkpoint, options)).num_slots, -1);
}

TEST(PlacedModel, MatchesModelOnOneDeviceForEveryArchitecture) {
  int compared = 0;
  for (const std::string& name : sample_of(golden_models(), "PlacedModel")) {
    if (!has_experts(name)) continue;
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = must(Checkpoint::open(golden_folder(name)));
    const std::vector<int32_t> ids = golden_reference(name).ids;
    Model whole = must(Model::load(checkpoint, {.threads = 2, .max_num_tokens = 32}));
    const std::vector<float> want = logits_of_steps(whole, ids);
    for (const double share : {0.0, 0.5, 0.9}) {
      const ModelOptions options = options_for(checkpoint, share);
      const ModelPlan planned = must(plan(checkpoint, options));
      EXPECT_EQ(planned.num_slots > 0, share > 0) << planned.num_slots;
      EXPECT_GT(planned.host_bytes, 0);
      EXPECT_LE(planned.total_bytes(), options.device_memory);
      Model placed = must(Model::load(checkpoint, options));
      EXPECT_LE(share_of_error(logits_of_steps(placed, ids), want),
                logit_bound(whole.choices(), placed.choices()))
          << planned.num_slots << " slots";
      const PlacementCounts counts = placed.placement_counts();
      EXPECT_EQ(counts.hits > 0, share > 0);
      // Where an expert arrives faster than the host computes it, all are found in slots.
      const bool divides = way_of(ModelAccess::state(placed).call_ways, 1) == CallWay::kDivided;
      EXPECT_TRUE(counts.misses > 0 || share == 0.9 || !divides);
    }
    ++compared;
  }
  EXPECT_GE(compared, 25 / Sample::kStep);
}

TEST(PlacedModel, MovesExpertsBetweenStepsUnlessDeterministic) {
  const Checkpoint checkpoint = must(Checkpoint::open(golden_folder("qwen3_moe")));
  const std::vector<int32_t> ids = golden_reference("qwen3_moe").ids;
  Model whole = must(Model::load(checkpoint, {.threads = 2, .max_num_tokens = 32}));
  const std::vector<float> want = logits_of_steps(whole, ids);
  for (const bool deterministic : {false, true}) {
    const ModelOptions options = options_for(checkpoint, 0.5, deterministic);
    Model one = must(Model::load(checkpoint, options)),
          two = must(Model::load(checkpoint, options));
    set_eager_policy(one);
    set_eager_policy(two);
    const int64_t filled = one.placement_counts().moves;
    EXPECT_GT(filled, 0);
    const std::vector<float> logits = logits_of_steps(one, ids);
    EXPECT_LE(share_of_error(logits, want), logit_bound(whole.choices(), one.choices()));
    EXPECT_EQ(logits, logits_of_steps(two, ids)) << "equal steps, equal moves";
    EXPECT_EQ(one.placement_counts().moves > filled, !deterministic);
    if (!deterministic) continue;
    EXPECT_EQ(logits_of_steps(one, ids), logits) << "whatever ran before";
  }
}

TEST(PlacedModel, ReloadMatchesColdLoadBitForBit) {
  const std::string name = "qwen3_moe";
  SyntheticCheckpoint other = golden_model(name);
  for (auto& [tensor, t] : other.tensors) {  // other signs
    const auto size = static_cast<size_t>(bits(t.dtype) / 8);
    for (size_t i = size - 1; i < t.bytes.size(); i += size) t.bytes[i] ^= std::byte{0x80};
  }
  const TemporaryFolder folder;
  must(other.write(folder.path()));
  const Checkpoint before = must(Checkpoint::open(golden_folder(name))),
                   after = must(Checkpoint::open(folder.path()));
  const ModelOptions options = options_for(before, 0.5, true);
  const std::vector<int32_t> ids = golden_reference(name).ids;
  Model model = must(Model::load(before, options)), cold = must(Model::load(after, options));
  EXPECT_NE(logits_of_steps(model, ids), logits_of_steps(cold, ids));
  must(model.reload(after));
  EXPECT_EQ(logits_of_steps(model, ids), logits_of_steps(cold, ids));
}

TEST(PlacedModel, FillsSlotsByMeasuredLoad) {
  const Checkpoint checkpoint = must(Checkpoint::open(golden_folder("qwen3_moe")));
  const std::vector<int32_t> ids = golden_reference("qwen3_moe").ids;
  Model counting = must(Model::load(checkpoint, {.threads = 2, .count_routing = true}));
  (void)must(all_logits(counting, ids));
  ModelOptions options = options_for(checkpoint, 0.5, true);
  Model by_number = must(Model::load(checkpoint, options));
  options.measured_load =
      std::make_shared<const RoutingStatistics>(must(counting.routing_statistics()));
  Model by_load = must(Model::load(checkpoint, options));
  (void)logits_of_steps(by_number, ids);
  (void)logits_of_steps(by_load, ids);
  EXPECT_GT(by_load.placement_counts().hits, by_number.placement_counts().hits);
}

TEST(PlacedModel, RejectsOptionsAndMemoryThatDoNotServe) {
  const Checkpoint checkpoint = must(Checkpoint::open(golden_folder("qwen3_moe")));
  const ModelOptions half = options_for(checkpoint, 0.5);
  const auto error = [&](auto change) {
    ModelOptions options = half;
    change(options);
    const Result<ModelPlan> planned = plan(checkpoint, options);
    return planned ? "accepted" : planned.error().to_string();
  };
  EXPECT_EQ(error([](ModelOptions&) {}), "accepted");
  EXPECT_THAT(error([](ModelOptions& o) { o.device_memory = 1000; }),
              HasSubstr("for everything except experts, with caches (device_memory)"));
  EXPECT_THAT(error([](ModelOptions& o) { o.device_memory = -2; }),
              HasSubstr("device_memory: needs 0 or more bytes, or -1 for what is free"));
  EXPECT_THAT(error([](ModelOptions& o) { o.host_memory = 1000; }),
              HasSubstr("on the host for one expert of each layer (host_memory)"));
  EXPECT_THAT(error([](ModelOptions& o) {
                o.parallel.ep_size = 2;
                o.spread = Spread::kDispatched;
              }),
              HasSubstr("device_memory: needs mode=replicated"));
  EXPECT_THAT(error([](ModelOptions& o) {
                o.parallel.ep_size = 2;
                o.deterministic = true;
              }),
              HasSubstr("device_memory: needs deterministic to be off on several ranks"));
  EXPECT_THAT(error([&](ModelOptions& o) {
                o.device_memory = options_for(checkpoint, 0).device_memory;
                o.parallel.ep_size = 2;
                o.host_memory = 1000;
              }),
              HasSubstr("because ranks read no experts from files"));
}

}  // namespace
}  // namespace moracle::placement_test
