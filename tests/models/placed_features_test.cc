// Placed models with adapters, with experts in files, and their plans.
#include <gmock/gmock.h>

#include <filesystem>

#include "conformance/conformance.h"
#include "logit_bounds.h"
#include "models/placed_models.h"
#include "support/sample.h"
#include "support/temporary_folder.h"

namespace moracle::placed_features_test {
namespace {

using namespace testing;
using namespace testing::placed;
using ::testing::HasSubstr;

/// An adapter for all experts of the model.
std::shared_ptr<const LoraAdapter> adapter_of(const Checkpoint& checkpoint, uint64_t seed) {
  LoraAdapter adapter;
  for (const int64_t layer : checkpoint.moe_layers()) {
    Request request;
    request.layer = must(checkpoint.moe_layer(layer)).spec;
    request.lora_rank = adapter.rank = 4;
    request.max_adapters = 1;
    adapter.layers[layer] = conformance::random_adapters(request, seed + layer)[0];
  }
  return std::make_shared<const LoraAdapter>(std::move(adapter));
}

std::vector<float> logits_of(Model& model, const std::vector<int32_t>& ids, int32_t adapter) {
  KvCache cache = must(model.make_cache(static_cast<int64_t>(ids.size())));
  std::vector<float> all;
  for (const int32_t& id : ids) {
    const Model::Step step{{&id, 1}, &cache, adapter};
    must(model.forward({&step, 1}));
    const std::span<const float> logits = must(model.logits(0, 1));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

TEST(PlacedFeatures, AdaptersMatchOneDeviceForEveryArchitecture) {
  int compared = 0;
  for (const std::string& name : sample_of(golden_models(), "PlacedAdapters")) {
    if (!has_experts(name)) continue;
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = must(Checkpoint::open(golden_folder(name)));
    const std::vector<int32_t> ids = golden_reference(name).ids;
    ModelOptions alone{.threads = 2, .max_num_tokens = 32};
    alone.read_adapters = {adapter_of(checkpoint, 3), adapter_of(checkpoint, 11)};
    const Result<ModelPlan> served = plan(checkpoint, alone);
    if (!served) continue;  // a scheme without adapters
    Model whole = must(Model::load(checkpoint, alone));
    ModelOptions options = options_for(checkpoint, 0.5);
    options.device_memory +=
        must(plan(checkpoint, alone)).total_bytes() -
        must(plan(checkpoint, {.threads = 2, .max_num_tokens = 32})).total_bytes();
    options.read_adapters = alone.read_adapters;
    const ModelPlan planned = must(plan(checkpoint, options));
    ASSERT_GE(planned.num_slots, 0);
    EXPECT_LE(planned.total_bytes(), options.device_memory);
    Model placed = must(Model::load(checkpoint, options));
    set_eager_policy(placed);
    for (const int32_t adapter : {-1, 0, 1}) {
      const std::vector<float> want = logits_of(whole, ids, adapter);
      EXPECT_LE(share_of_error(logits_of(placed, ids, adapter), want),
                logit_bound(whole.choices(), placed.choices()))
          << "adapter " << adapter << ", " << planned.num_slots << " slots";
    }
    EXPECT_NE(logits_of(whole, ids, 0), logits_of(whole, ids, 1));
    ++compared;
  }
  EXPECT_GE(compared, 20 / Sample::kStep);
}

TEST(PlacedFeatures, AdaptersNeedAllExpertsInHostMemory) {
  const Checkpoint checkpoint = must(Checkpoint::open(golden_folder("qwen3_moe")));
  ModelOptions options = options_for(checkpoint, 0);
  options.read_adapters = {adapter_of(checkpoint, 3)};
  options.host_memory = 10'000;
  const Result<ModelPlan> planned = plan(checkpoint, options);
  ASSERT_FALSE(planned);
  EXPECT_THAT(planned.error().to_string(),
              HasSubstr("for all experts (host_memory), because adapters change some"));
}

TEST(PlacedFeatures, ExpertsInFilesMatchOneDeviceForEveryArchitecture) {
  int compared = 0;
  for (const std::string& name : sample_of(golden_models(), "PlacedFiles")) {
    if (!has_experts(name)) continue;
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = must(Checkpoint::open(golden_folder(name)));
    const std::vector<int32_t> ids = golden_reference(name).ids;
    Model whole = must(Model::load(checkpoint, {.threads = 2, .max_num_tokens = 32}));
    const std::vector<float> want = logits_of_steps(whole, ids);
    for (const bool deterministic : {true, false}) {
      const ModelOptions options =
          with_files(checkpoint, options_for(checkpoint, 0.5, deterministic), 0.6);
      const ModelPlan planned = must(plan(checkpoint, options));
      EXPECT_LE(planned.host_bytes, options.host_memory);
      EXPECT_GE(planned.num_on_host, 1);
      Model placed = must(Model::load(checkpoint, options));
      set_eager_policy(placed);
      const int64_t before = placed.placement_counts().reads;
      EXPECT_LE(share_of_error(logits_of_steps(placed, ids), want),
                logit_bound(whole.choices(), placed.choices()));
      EXPECT_GT(placed.placement_counts().reads, before);
      if (!deterministic) continue;
      Model again = must(Model::load(checkpoint, options));
      const std::vector<float> first = logits_of_steps(again, ids);
      EXPECT_EQ(logits_of_steps(again, ids), first) << "whatever was read before";
    }
    ++compared;
  }
  EXPECT_GE(compared, 25 / Sample::kStep);
}

TEST(PlacedFeatures, ReloadWithExpertsInFilesMatchesColdLoad) {
  const std::string name = "qwen3_moe";
  SyntheticCheckpoint other = golden_model(name);
  for (auto& [tensor, t] : other.tensors) {  // other signs
    const auto size = static_cast<size_t>(bits(t.dtype) / 8);
    for (size_t i = size - 1; i < t.bytes.size(); i += size) t.bytes[i] ^= std::byte{0x80};
  }
  const TemporaryFolder folder;
  must(other.write(folder.path()));
  const Checkpoint before = must(Checkpoint::open(golden_folder(name)));
  const ModelOptions options = with_files(before, options_for(before, 0.5, true), 0.6);
  const std::vector<int32_t> ids = golden_reference(name).ids;
  Model model = must(Model::load(before, options));
  {
    const Checkpoint after = must(Checkpoint::open(folder.path()));
    must(model.reload(after));
  }  // the model keeps what it reads from open
  Model cold = must(Model::load(must(Checkpoint::open(folder.path())), options));
  EXPECT_EQ(logits_of_steps(model, ids), logits_of_steps(cold, ids));
}

TEST(PlacedFeatures, FileCutWhileMappedIsErrorOfStep) {
  const std::string name = "qwen3_moe";
  const TemporaryFolder folder;
  must(golden_model(name).write(folder.path()));
  const Checkpoint checkpoint = must(Checkpoint::open(folder.path()));
  const ModelOptions options = with_files(checkpoint, options_for(checkpoint, 0.5), 0.3);
  Model model = must(Model::load(checkpoint, options));
  const std::vector<int32_t> ids = golden_reference(name).ids;
  const std::vector<float> want = logits_of_steps(model, ids);
  std::filesystem::resize_file(folder.path() + "/model.safetensors", 4096);
  std::string error;
  for (int pass = 0; pass < 3 && error.empty(); ++pass) {
    KvCache cache = must(model.make_cache(64));
    for (const int32_t& id : ids) {
      const Model::Step step{{&id, 1}, &cache};
      const Status done = model.forward({&step, 1});
      if (!done) error = done.error().to_string();
      if (!done) break;
    }
  }
  EXPECT_THAT(error, HasSubstr("as when it was opened"));
}

TEST(PlacedFeatures, FreeMemoryIsLessThanAllMemory) {
  const Machine here = Machine::here();
  const int64_t free = must(free_memory({}, here));
  EXPECT_GT(free, 0);
  EXPECT_LT(free, here.cpu.memory_bytes);
  const Machine h200 = must(Machine::find("h200"));
  const int64_t all = h200.gpus[0].memory_bytes;
  EXPECT_EQ(must(free_memory({Platform::kCuda, 0}, h200)), all - all / 32)
      << "what is free is unknown";
  EXPECT_THAT(free_memory({Platform::kCuda, 7}, h200).error().to_string(),
              HasSubstr("because machine h200 has no cuda:7"));
}

TEST(PlacedFeatures, PlanTakesFreeMemory) {
  const Checkpoint checkpoint = must(Checkpoint::open(golden_folder("qwen3_moe")));
  const Machine h200 = must(Machine::find("h200"));
  ModelOptions options;
  options.device = {Platform::kCuda, 0};
  options.device_memory = options.host_memory = kFreeMemory;
  EXPECT_EQ(must(plan(checkpoint, options, h200)).num_slots, -1) << "it fits";
  ModelOptions here{.max_num_tokens = 4};
  here.device_memory = kFreeMemory;
  EXPECT_EQ(must(plan(checkpoint, here)).num_slots, -1);
  must(Model::load(checkpoint, here));
}

TEST(PlacedFeatures, EstimateFollowsRatesAndSlots) {
  const Checkpoint checkpoint = must(Checkpoint::open(golden_folder("qwen3_moe")));
  const auto estimate = [&](double share, MemoryRates rates, bool files = false) {
    ModelOptions options = options_for(checkpoint, share);
    if (files) options = with_files(checkpoint, options, 0.6);
    options.rates = rates;
    return must(plan(checkpoint, options)).estimate;
  };
  const MemoryRates rates{.host = 80e9, .device = 3000e9, .bus = 50e9};
  EXPECT_FALSE(estimate(0.5, {}));
  EXPECT_FALSE(estimate(0.5, {.host = 80e9, .device = 3000e9}));
  const auto none = estimate(0, rates), half = estimate(0.5, rates);
  ASSERT_TRUE(none && half);
  EXPECT_EQ(none->hit_rate, 0);
  EXPECT_EQ(none->tokens_per_second, none->without_slots);
  EXPECT_GT(half->hit_rate, 0);
  EXPECT_GT(half->tokens_per_second, half->without_slots);
  EXPECT_GT(none->crossing_bytes, 0);
  const auto faster = estimate(0.5, {.host = 160e9, .device = 6000e9, .bus = 100e9});
  EXPECT_NEAR(faster->tokens_per_second, 2 * half->tokens_per_second,
              1e-6 * half->tokens_per_second);
  // A slow host beside a fast bus: what slots lack crosses first.
  int64_t fetched = 0;
  for (const std::string& name : golden_models()) {
    if (!has_experts(name)) continue;
    const Checkpoint one = must(Checkpoint::open(golden_folder(name)));
    ModelOptions options = options_for(one, 0.9);
    options.rates = {.host = 2e9, .device = 3000e9, .bus = 50e9};
    const ModelPlan planned = must(plan(one, options));
    int64_t top_k = 0;
    for (const Choice& choice : planned.choices)
      if (choice.part == "experts") top_k = choice.selection.plan->layer.top_k;
    if (!planned.estimate || planned.num_slots < top_k) continue;
    for (const SplitEstimate& other : planned.estimate->others) {
      if (other.split != "each chosen expert crosses the bus") continue;
      EXPECT_GE(planned.estimate->tokens_per_second, other.tokens_per_second) << name;
      ++fetched;
    }
  }
  EXPECT_GT(fetched, 0);
  EXPECT_FALSE(estimate(0.5, rates, true)) << "the files' rate is unknown";
  const auto read = estimate(0.5, {80e9, 3000e9, 50e9, 2e9}, true);
  ASSERT_TRUE(read);
  EXPECT_GT(read->read_rate, 0);
  EXPECT_LT(read->tokens_per_second, half->tokens_per_second);
}

}  // namespace
}  // namespace moracle::placed_features_test
