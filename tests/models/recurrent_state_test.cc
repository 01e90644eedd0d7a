// Tests the state of recurrent layers: a sequence keeps it for its end and for its length before
// the last step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "base/text.h"
#include "golden_model.h"
#include "models/decoder/model_state.h"
#include "models/explain.h"
#include "moracle/device.h"
#include "support/device.h"
#include "support/model_words.h"
#include "support/must.h"

namespace moracle::recurrent_state_test {
namespace {

using ::testing::ElementsAreArray;
using testing::golden_folder;
using testing::golden_reference;
using ::testing::HasSubstr;
using testing::must;

/// On a CPU, and on the other devices of this machine.
class RecurrentState
    : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {  // device, model
 protected:
  void SetUp() override {
    const std::string& kind = std::get<0>(GetParam());
    const std::string name = kind == "opencl" ? testing::opencl_name() : kind;
    if (const auto device = open_device(name); !device) GTEST_SKIP() << device.error().to_string();
    ModelOptions options;
    options.device = testing::device(name);
    options.threads = 2;
    loaded_.emplace(must(Model::load(checkpoint_, options)));
    model_ = &*loaded_;
    cache_.emplace(must(model_->make_cache(19)));
  }
  Status run(KvCache& cache, int64_t first, int64_t count) {
    const Model::Step step{std::span(ids_).subspan(first, count), &cache};
    return model_->forward({&step, 1});
  }
  std::vector<float> last_logits(int64_t count) {
    const auto logits = model_->logits(count - 1, 1);
    EXPECT_TRUE(logits) << logits.error().to_string();
    return {logits->begin(), logits->end()};
  }

  const std::string golden_ = std::get<1>(GetParam());
  const Checkpoint checkpoint_ = must(Checkpoint::open(golden_folder(golden_)));
  const std::vector<int32_t> ids_ = golden_reference(golden_).ids;
  std::optional<Model> loaded_;
  Model* model_ = nullptr;
  std::optional<KvCache> cache_;
};
INSTANTIATE_TEST_SUITE_P(
    Devices, RecurrentState,
    ::testing::Combine(::testing::Values("cpu", "cuda", "opencl"),
                       ::testing::Values("qwen3_5_moe", "kimi_linear", "minimax")),
    [](const auto& tested) {
      const std::string& device = std::get<0>(tested.param);
      const char* const label = device == "cpu" ? "Cpu" : device == "cuda" ? "Cuda" : "OpenCl";
      return str(label, "_", std::get<1>(tested.param));
    });

TEST_P(RecurrentState, TruncatingToCheckpointRepeatsTheStep) {
  ASSERT_TRUE(run(*cache_, 0, 7));
  ASSERT_TRUE(run(*cache_, 7, 3));
  const std::vector<float> want = last_logits(3);
  const Status back = cache_->truncate(7);
  ASSERT_TRUE(back) << back.error().to_string();
  EXPECT_EQ(cache_->length(), 7);
  ASSERT_TRUE(run(*cache_, 7, 3));
  EXPECT_THAT(last_logits(3), ElementsAreArray(want));
  // Also after tokens that were not the ones of before.
  ASSERT_TRUE(cache_->truncate(7));
  ASSERT_TRUE(run(*cache_, 0, 2));
  EXPECT_NE(last_logits(2), want);
  ASSERT_TRUE(cache_->truncate(7));
  ASSERT_TRUE(run(*cache_, 7, 3));
  EXPECT_THAT(last_logits(3), ElementsAreArray(want));
}

TEST_P(RecurrentState, TruncatingElsewhereIsRefusedAndChangesNothing) {
  ASSERT_TRUE(run(*cache_, 0, 7));
  ASSERT_TRUE(run(*cache_, 7, 3));
  for (const int64_t to : {1, 6, 8, 9}) {
    const Status refused = cache_->truncate(to);
    ASSERT_FALSE(refused) << to;
    EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
    EXPECT_EQ(refused.error().to_string(),
              str("cache length: needs 0, 7 (before the last step), or 10, because recurrent "
                  "layers keep no state of other positions; the request is ",
                  to));
  }
  EXPECT_EQ(cache_->length(), 10);
  ASSERT_TRUE(cache_->truncate(10));
  ASSERT_TRUE(cache_->truncate(7));
  // A checkpoint serves once: the state before it is gone.
  const Status refused = cache_->truncate(3);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("needs 0, or 7, because"));
}

TEST_P(RecurrentState, EmptiedSequenceStartsAnew) {
  ASSERT_TRUE(run(*cache_, 0, 4));
  const std::vector<float> want = last_logits(4);
  ASSERT_TRUE(run(*cache_, 4, 8));
  ASSERT_TRUE(cache_->truncate(0));
  ASSERT_TRUE(run(*cache_, 0, 4));
  EXPECT_THAT(last_logits(4), ElementsAreArray(want));
}

TEST_P(RecurrentState, StepWithoutTokensKeepsCheckpoint) {
  ASSERT_TRUE(run(*cache_, 0, 4));
  ASSERT_TRUE(run(*cache_, 4, 2));
  const std::vector<float> want = last_logits(2);
  ASSERT_TRUE(run(*cache_, 6, 0));
  ASSERT_TRUE(cache_->truncate(4));
  ASSERT_TRUE(run(*cache_, 4, 2));
  EXPECT_THAT(last_logits(2), ElementsAreArray(want));
}

// A step that fails in its last layer has written the state of every layer.
TEST_P(RecurrentState, FailedStepLeavesState) {
  ASSERT_TRUE(run(*cache_, 0, 7));
  Model::State& state = ModelAccess::state(*model_);
  state.observer.on_output = [](StepOutput output, int64_t, const Matrix&) -> Status {
    if (output != StepOutput::kFinalNorm) return {};
    return Error{ErrorKind::kUnsupported, "", "test", "a step that ends", "it does not"};
  };
  ASSERT_FALSE(run(*cache_, 2, 5));
  state.observer.on_output = {};
  EXPECT_EQ(cache_->length(), 7);
  ASSERT_TRUE(run(*cache_, 7, 3));
  const std::vector<float> got = last_logits(3);
  KvCache other = must(model_->make_cache(19));
  ASSERT_TRUE(run(other, 0, 7));
  ASSERT_TRUE(run(other, 7, 3));
  EXPECT_THAT(got, ElementsAreArray(last_logits(3)));
}

TEST_P(RecurrentState, MemoryOfEndedSequenceServesTheNext) {
  for (int i = 0; i < 3; ++i) {
    KvCache other = must(model_->make_cache(19));
    ASSERT_TRUE(run(other, 0, 5));
    const std::vector<float> want = last_logits(5);
    ASSERT_TRUE(run(*cache_, 0, 5));
    EXPECT_THAT(last_logits(5), ElementsAreArray(want));
    ASSERT_TRUE(cache_->truncate(0));
  }
}

TEST(RecurrentModels, PlanCountsTheState) {
  const auto planned = plan(must(Checkpoint::open(golden_folder("qwen3_next"))), {});
  ASSERT_TRUE(planned) << planned.error().to_string();
  // Two layers: 4 heads of [12, 10], and 3 rows of 2 · 24 + 40 columns, in multiples of 64 bytes.
  EXPECT_EQ(planned->state_bytes, 2 * (1920 + 1088));
  EXPECT_EQ(planned->cache_bytes_per_token, 2 * 2 * 8 * 4);
}

TEST(RecurrentModels, PlanCountsTheStateOfMamba2) {
  const auto planned = plan(must(Checkpoint::open(golden_folder("nemotron_h"))), {});
  ASSERT_TRUE(planned) << planned.error().to_string();
  // Two layers: 6 heads of [10, 5], and 3 rows of 30 + 2 · 20 columns, in multiples of 64 bytes.
  EXPECT_EQ(planned->state_bytes, 2 * (1216 + 896));
  EXPECT_EQ(planned->cache_bytes_per_token, 2 * 2 * 8 * 4);
}

TEST(RecurrentModels, PlanCountsTheStateOfLinearAttention) {
  // Two layers: 3 heads of [6, 6], and 3 rows of 3 · 18 columns, in multiples of 64 bytes.
  EXPECT_EQ(must(plan(must(Checkpoint::open(golden_folder("kimi_linear"))), {})).state_bytes,
            2 * (448 + 704));
  // Two layers: 4 heads of [8, 8].
  EXPECT_EQ(must(plan(must(Checkpoint::open(golden_folder("minimax"))), {})).state_bytes, 2 * 1024);
}

TEST(RecurrentModels, GpusOfEveryPlatformArePlanned) {
  for (const auto& [device, machine] : {std::pair{"cuda", "h200"}, {"opencl", "arc-b580"}}) {
    ModelOptions options;
    options.device = testing::device(device);
    for (const char* const model :
         {"qwen3_next", "qwen3_5_moe", "lfm2_moe", "granite_moe_hybrid", "nemotron_h",
          "nemotron_h_latent", "kimi_linear", "bailing_hybrid", "minimax", "longcat_flash"}) {
      const auto explained = explain(must(Checkpoint::open(golden_folder(model))), options,
                                     must(Machine::find(machine)));
      ASSERT_TRUE(explained) << explained.error().to_string();
      EXPECT_EQ(explained->not_runnable, "") << model << " on " << machine;
    }
  }
}

}  // namespace
}  // namespace moracle::recurrent_state_test
