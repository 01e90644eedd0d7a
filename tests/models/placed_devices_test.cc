// Models with slots on two devices: both are CPU devices here.
#include <gmock/gmock.h>

#include "logit_bounds.h"
#include "models/placed_models.h"
#include "support/sample.h"
#include "support/temporary_folder.h"

namespace moracle::placed_devices_test {
namespace {

using namespace testing;
using namespace testing::placed;
using ::testing::HasSubstr;

ModelOptions on_two(ModelOptions options) {
  options.slot_devices = {DeviceName()};
  return options;
}

// Tiny models fit into slots of two devices. So that the host computes, too, and experts move:
// empties every second slot.
void evict_half(Model& model) {
  for (Layer& layer : ModelAccess::state(model).layers) {
    PlacedMoe* const placed = layer.feed_forward.routed.placed();
    if (placed == nullptr) continue;
    const auto count = static_cast<int64_t>(placed->placed().size());
    for (int64_t slot = 0; slot < count; ++slot) must(placed->evict(slot));
    for (int64_t slot = 1; slot < count; slot += 2) must(placed->place(slot, slot));
  }
}

TEST(PlacedDevices, MatchOneDeviceForEveryArchitecture) {
  int compared = 0;
  for (const std::string& name : sample_of(golden_models(), "PlacedDevices")) {
    if (!has_experts(name)) continue;
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = must(Checkpoint::open(golden_folder(name)));
    const std::vector<int32_t> ids = golden_reference(name).ids;
    Model whole = must(Model::load(checkpoint, {.threads = 2, .max_num_tokens = 32}));
    const std::vector<float> want = logits_of_steps(whole, ids);
    for (const bool deterministic : {true, false}) {
      const ModelOptions options = on_two(options_for(checkpoint, 0.3, deterministic));
      const ModelPlan planned = must(plan(checkpoint, options));
      ASSERT_EQ(planned.slot_devices.size(), 1U);
      EXPECT_GT(planned.slot_devices[0].num_slots, 0);
      EXPECT_LE(planned.slot_devices[0].bytes, options.device_memory);
      Model placed = must(Model::load(checkpoint, options));
      evict_half(placed);
      if (!deterministic) set_eager_policy(placed);
      const std::vector<float> got = logits_of_steps(placed, ids);
      EXPECT_LE(share_of_error(got, want), logit_bound(whole.choices(), placed.choices()));
      const PlacementCounts counts = placed.placement_counts();
      ASSERT_EQ(counts.hits_of_devices.size(), 2U);
      EXPECT_GT(counts.hits_of_devices[1], 0);
      EXPECT_EQ(counts.hits_of_devices[0] + counts.hits_of_devices[1], counts.hits);
      EXPECT_GT(counts.steps_us, 0);
      EXPECT_LE(counts.host_waits_us, counts.steps_us);
      EXPECT_LE(counts.slots_wait_us, counts.steps_us);
      Model again = must(Model::load(checkpoint, options));
      evict_half(again);
      if (!deterministic) set_eager_policy(again);
      EXPECT_EQ(logits_of_steps(again, ids), got) << "equal steps, equal moves, equal bits";
      if (!deterministic) continue;
      EXPECT_EQ(logits_of_steps(placed, ids), got) << "whatever ran before";
    }
    ++compared;
  }
  EXPECT_GE(compared, 25 / Sample::kStep);
}

TEST(PlacedDevices, HaveAtMostOneSlotForEachExpertAndEqualWork) {
  const Checkpoint checkpoint = must(Checkpoint::open(golden_folder("qwen3_moe")));
  const ModelOptions options = on_two(options_for(checkpoint, 0.9, true));
  const ModelPlan planned = must(plan(checkpoint, options));
  const int64_t other = planned.slot_devices[0].num_slots;
  EXPECT_EQ(planned.num_slots + other, must(checkpoint.moe_layer(0)).spec.num_experts);
  EXPECT_LE(std::abs(planned.num_slots - other), 1);
  Model model = must(Model::load(checkpoint, options));
  (void)logits_of_steps(model, golden_reference("qwen3_moe").ids);
  EXPECT_EQ(model.placement_counts().misses, 0);
}

TEST(PlacedDevices, ReloadMatchesColdLoadWithAndWithoutFiles) {
  const std::string name = "qwen3_moe";
  SyntheticCheckpoint other = golden_model(name);
  for (auto& [tensor, t] : other.tensors) {  // other signs
    const auto size = static_cast<size_t>(bits(t.dtype) / 8);
    for (size_t i = size - 1; i < t.bytes.size(); i += size) t.bytes[i] ^= std::byte{0x80};
  }
  const TemporaryFolder folder;
  must(other.write(folder.path()));
  const Checkpoint before = must(Checkpoint::open(golden_folder(name)));
  const std::vector<int32_t> ids = golden_reference(name).ids;
  for (const bool files : {false, true}) {
    ModelOptions options = on_two(options_for(before, 0.3, true));
    if (files) options = with_files(before, options, 0.6);
    Model model = must(Model::load(before, options));
    must(model.reload(must(Checkpoint::open(folder.path()))));
    Model cold = must(Model::load(must(Checkpoint::open(folder.path())), options));
    EXPECT_EQ(logits_of_steps(model, ids), logits_of_steps(cold, ids)) << "files: " << files;
    EXPECT_GT(model.placement_counts().hits_of_devices[1], 0);
  }
}

TEST(PlacedDevices, RejectsOptionsThatDoNotServe) {
  const Checkpoint checkpoint = must(Checkpoint::open(golden_folder("qwen3_moe")));
  const auto error = [&](auto change) {
    ModelOptions options = on_two(options_for(checkpoint, 0.3));
    change(options);
    const Result<ModelPlan> planned = plan(checkpoint, options);
    return planned ? "accepted" : planned.error().to_string();
  };
  EXPECT_EQ(error([](ModelOptions&) {}), "accepted");
  EXPECT_THAT(error([](ModelOptions& o) { o.device_memory = 0; }),
              HasSubstr("further devices have slots for experts"));
  EXPECT_THAT(error([](ModelOptions& o) { o.parallel.ep_size = 2; }),
              HasSubstr("device: needs one device for each of several ranks"));
  EXPECT_THAT(error([](ModelOptions& o) {
                o.slot_devices = {{Platform::kCuda, 0}};
              }),
              HasSubstr("device: needs several devices of one platform, each once; there are cpu "
                        "and cuda:0"));
  ModelOptions options;
  must(set_devices(options, "cuda:0,cuda:1,cuda:3"));
  EXPECT_EQ(name(options.device), "cuda:0");
  ASSERT_EQ(options.slot_devices.size(), 2U);
  EXPECT_EQ(name(options.slot_devices[1]), "cuda:3");
  EXPECT_FALSE(set_devices(options, "cuda:0,"));
}

TEST(PlacedDevices, PlanOfTwoGpusIsMadeWithoutThem) {
  Machine machine = must(Machine::find("h200"));
  GpuInfo second = machine.gpus[0];
  second.index = 1;
  machine.gpus.push_back(second);
  int planned_models = 0;
  for (const std::string& name : golden_models()) {
    if (!has_experts(name)) continue;
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = must(Checkpoint::open(golden_folder(name)));
    ModelOptions options{.max_num_tokens = 4};
    must(set_devices(options, "cuda:0,cuda:1"));
    options.deterministic = true;
    options.cache_bytes = 1 << 16;
    options.rates = {.host = 80e9, .device = 3000e9, .bus = 50e9};
    options.device_memory = 1 << 30;
    const Result<ModelPlan> whole = plan(checkpoint, options, machine);
    if (!whole) continue;  // a scheme that the GPU does not serve
    options.device_memory = whole->total_bytes() + options.cache_bytes - 1;
    const Result<ModelPlan> planned = plan(checkpoint, options, machine);
    // Memory for experts on their way may exceed that of all experts of a tiny model.
    if (!planned || planned->slot_devices.empty() || planned->slot_devices[0].num_slots == 0)
      continue;
    EXPECT_EQ(moracle::name(planned->slot_devices[0].device), "cuda:1");
    EXPECT_LE(planned->slot_devices[0].bytes, options.device_memory);
    ASSERT_TRUE(planned->estimate);
    EXPECT_EQ(planned->estimate->others.size(), 6U);
    for (const SplitEstimate& other : planned->estimate->others) {
      EXPECT_GT(other.tokens_per_second, 0) << other.split;
      EXPECT_EQ(other.reason.empty(),
                other.tokens_per_second > planned->estimate->tokens_per_second)
          << other.split;
    }
    ++planned_models;
  }
  EXPECT_GE(planned_models, 1);
}

}  // namespace
}  // namespace moracle::placed_devices_test
