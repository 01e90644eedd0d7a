// A model whose experts lie in host memory and in slots of one NVIDIA GPU, or of two.
#include <gmock/gmock.h>

#include "models/architectures/device_architectures.h"
#include "models/placed_models.h"

namespace moracle::cuda_placed_model_test {
namespace {

using namespace testing;
using namespace testing::placed;

constexpr size_t kTokens = 48;

class CudaPlacedModel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    must(set_devices(devices_, GetParam()));
    std::vector<DeviceName> all{devices_.device};
    all.insert(all.end(), devices_.slot_devices.begin(), devices_.slot_devices.end());
    for (const DeviceName& one : all)
      if (const auto opened = open_device(name(one)); !opened)
        GTEST_SKIP() << "needs " << all.size() << " NVIDIA GPUs: " << opened.error().to_string();
  }
  /// With `deterministic`, without memory for steps of many tokens.
  ModelOptions whole(bool deterministic = true) const {
    ModelOptions options;
    options.device = devices_.device;
    options.threads = 2;
    options.max_num_tokens = 16;
    options.cache_bytes = 1 << 20;
    options.deterministic = deterministic;
    return options;
  }
  /// With slots for some experts on every device.
  ModelOptions placed(bool deterministic) const {
    ModelOptions options = whole(deterministic);
    options.device_memory =
        must(plan(checkpoint_, options)).total_bytes() + options.cache_bytes - 1;
    options.slot_devices = devices_.slot_devices;
    return options;
  }
  Model load(const ModelOptions& options) const { return must(Model::load(checkpoint_, options)); }
  // Two devices may have slots for all experts: the host computes, too.
  static void evict_some(Model& model) {
    for (Layer& layer : ModelAccess::state(model).layers) {
      PlacedMoe& placed = *layer.feed_forward.routed.placed();
      const auto count = static_cast<int64_t>(placed.placed().size());
      for (int64_t slot = 0; slot < count; slot += 3) must(placed.evict(slot));
    }
  }
  std::vector<int32_t> ids() const {
    std::vector<int32_t> ids = must(must(Tokenizer::open(kBox)).encode(kText));
    ids.resize(kTokens);
    return ids;
  }
  size_t num_devices() const { return 1 + devices_.slot_devices.size(); }
  void expect_hits_everywhere(const Model& model) const {
    const PlacementCounts counts = model.placement_counts();
    ASSERT_EQ(counts.hits_of_devices.size(), num_devices());
    for (size_t d = 0; d < num_devices(); ++d) EXPECT_GT(counts.hits_of_devices[d], 0) << d;
    EXPECT_GT(counts.misses, 0);
    EXPECT_GT(counts.steps_us, 0);
    EXPECT_GT(counts.host_waits_us, 0);
    EXPECT_LE(counts.host_waits_us, counts.steps_us);
    EXPECT_GT(counts.slots_wait_us, 0);
    EXPECT_LE(counts.slots_wait_us, counts.steps_us);
  }

  static constexpr const char* kText =
      "And the LORD spake unto Moses, saying, Speak unto the children of Israel, and say unto "
      "them, When ye be come into the land of your habitations, which I give unto you, and will "
      "make an offering by fire unto the LORD, a burnt offering, or a sacrifice";
  const std::string kBox = models_dir() + "/qwen3moe-gptq-int4-g128";
  const Checkpoint checkpoint_ = must(Checkpoint::open(kBox));
  ModelOptions devices_;
};

TEST_P(CudaPlacedModel, MatchesWholeModelAndRepeats) {
  Model model = load(whole());
  const std::vector<float> want = logits_of_steps(model, ids());
  std::vector<std::vector<float>> all;
  for (const bool graphs : {false, true}) {
    ModelOptions options = placed(true);
    options.graphs = graphs;
    const ModelPlan planned = must(plan(checkpoint_, options));
    ASSERT_EQ(planned.slot_devices.size() + 1, num_devices());
    EXPECT_GT(planned.num_slots, 0);
    for (const SlotDevicePlan& other : planned.slot_devices) {
      EXPECT_GT(other.num_slots, 0);
      EXPECT_LE(other.bytes, options.device_memory);
    }
    Model some = load(options);
    evict_some(some);
    all.push_back(logits_of_steps(some, ids()));
    EXPECT_LT(difference_of_most(all.back(), want, kTokens), kCloseInBf16);
    expect_hits_everywhere(some);
    EXPECT_EQ(logits_of_steps(some, ids()), all.back()) << "whatever ran before";
    EXPECT_EQ(ModelAccess::state(some).recorded.replays() > 0, graphs);
  }
  EXPECT_EQ(all[0], all[1]) << "replays give the bits of calls";
}

TEST_P(CudaPlacedModel, MatchesWholeModelWhileExpertsMove) {
  Model model = load(whole());
  const std::vector<float> want = logits_of_steps(model, ids());
  Model some = load(placed(false));
  evict_some(some);
  set_eager_policy(some);
  for (int run = 0; run < 3; ++run) {
    EXPECT_LT(difference_of_most(logits_of_steps(some, ids()), want, kTokens), kCloseInBf16);
  }
  EXPECT_GT(some.placement_counts().moves, 10);
  expect_hits_everywhere(some);
}

INSTANTIATE_TEST_SUITE_P(OnGpus, CudaPlacedModel, ::testing::Values("cuda:0", "cuda:0,cuda:1"),
                         [](const auto& tested) {
                           return std::string(tested.param) == "cuda:0" ? "One" : "Two";
                         });

}  // namespace
}  // namespace moracle::cuda_placed_model_test
