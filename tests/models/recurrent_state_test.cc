// Tests the state of recurrent layers: a sequence keeps it for its end and for its length before
// the last step. Devices without the operations refuse the model before a weight is read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "golden_model.h"
#include "models/decoder/model_state.h"
#include "models/explain.h"
#include "support/must.h"

namespace moracle::recurrent_state_test {
namespace {

using ::testing::ElementsAreArray;
using testing::golden_folder;
using testing::golden_reference;
using ::testing::HasSubstr;
using testing::must;

class RecurrentState : public ::testing::Test {
 protected:
  Status run(KvCache& cache, int64_t first, int64_t count) {
    const Model::Step step{std::span(ids_).subspan(first, count), &cache};
    return model_.forward({&step, 1});
  }
  std::vector<float> last_logits(int64_t count) {
    const auto logits = model_.logits(count - 1, 1);
    EXPECT_TRUE(logits) << logits.error().to_string();
    return {logits->begin(), logits->end()};
  }

  const Checkpoint checkpoint_ = must(Checkpoint::open(golden_folder("qwen3_5_moe")));
  const std::vector<int32_t> ids_ = golden_reference("qwen3_5_moe").ids;
  Model model_ = must(Model::load(checkpoint_, {.threads = 2}));
  KvCache cache_ = must(model_.make_cache(19));
};

TEST_F(RecurrentState, TruncatingToCheckpointRepeatsTheStep) {
  ASSERT_TRUE(run(cache_, 0, 7));
  ASSERT_TRUE(run(cache_, 7, 3));
  const std::vector<float> want = last_logits(3);
  const Status back = cache_.truncate(7);
  ASSERT_TRUE(back) << back.error().to_string();
  EXPECT_EQ(cache_.length(), 7);
  ASSERT_TRUE(run(cache_, 7, 3));
  EXPECT_THAT(last_logits(3), ElementsAreArray(want));
  // Also after tokens that were not the ones of before.
  ASSERT_TRUE(cache_.truncate(7));
  ASSERT_TRUE(run(cache_, 0, 2));
  EXPECT_NE(last_logits(2), want);
  ASSERT_TRUE(cache_.truncate(7));
  ASSERT_TRUE(run(cache_, 7, 3));
  EXPECT_THAT(last_logits(3), ElementsAreArray(want));
}

TEST_F(RecurrentState, TruncatingElsewhereIsRefusedAndChangesNothing) {
  ASSERT_TRUE(run(cache_, 0, 7));
  ASSERT_TRUE(run(cache_, 7, 3));
  for (const int64_t to : {1, 6, 8, 9}) {
    const Status refused = cache_.truncate(to);
    ASSERT_FALSE(refused) << to;
    EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
    EXPECT_EQ(refused.error().to_string(),
              str("cache length: needs 0, 7 (before the last step), or 10, because recurrent "
                  "layers keep no state of other positions; the request is ",
                  to));
  }
  EXPECT_EQ(cache_.length(), 10);
  ASSERT_TRUE(cache_.truncate(10));
  ASSERT_TRUE(cache_.truncate(7));
  // A checkpoint serves once: the state before it is gone.
  const Status refused = cache_.truncate(3);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("needs 0, or 7, because"));
}

TEST_F(RecurrentState, EmptiedSequenceStartsAnew) {
  ASSERT_TRUE(run(cache_, 0, 4));
  const std::vector<float> want = last_logits(4);
  ASSERT_TRUE(run(cache_, 4, 8));
  ASSERT_TRUE(cache_.truncate(0));
  ASSERT_TRUE(run(cache_, 0, 4));
  EXPECT_THAT(last_logits(4), ElementsAreArray(want));
}

TEST_F(RecurrentState, StepWithoutTokensKeepsCheckpoint) {
  ASSERT_TRUE(run(cache_, 0, 4));
  ASSERT_TRUE(run(cache_, 4, 2));
  const std::vector<float> want = last_logits(2);
  ASSERT_TRUE(run(cache_, 6, 0));
  ASSERT_TRUE(cache_.truncate(4));
  ASSERT_TRUE(run(cache_, 4, 2));
  EXPECT_THAT(last_logits(2), ElementsAreArray(want));
}

// A step that fails in its last layer has written the state of every layer.
TEST_F(RecurrentState, FailedStepLeavesState) {
  ASSERT_TRUE(run(cache_, 0, 7));
  Model::State& state = ModelAccess::state(model_);
  state.on_output = [](std::string_view part, int64_t, const Matrix&) -> Status {
    if (part != "final norm") return {};
    return Error{ErrorKind::kUnsupported, "", "test", "a step that ends", "it does not"};
  };
  ASSERT_FALSE(run(cache_, 2, 5));
  state.on_output = {};
  EXPECT_EQ(cache_.length(), 7);
  ASSERT_TRUE(run(cache_, 7, 3));
  const std::vector<float> got = last_logits(3);
  KvCache other = must(model_.make_cache(19));
  ASSERT_TRUE(run(other, 0, 7));
  ASSERT_TRUE(run(other, 7, 3));
  EXPECT_THAT(got, ElementsAreArray(last_logits(3)));
}

TEST_F(RecurrentState, MemoryOfEndedSequenceServesTheNext) {
  for (int i = 0; i < 3; ++i) {
    KvCache other = must(model_.make_cache(19));
    ASSERT_TRUE(run(other, 0, 5));
    const std::vector<float> want = last_logits(5);
    ASSERT_TRUE(run(cache_, 0, 5));
    EXPECT_THAT(last_logits(5), ElementsAreArray(want));
    ASSERT_TRUE(cache_.truncate(0));
  }
}

TEST(RecurrentModels, PlanCountsTheState) {
  const auto planned = plan(must(Checkpoint::open(golden_folder("qwen3_next"))), {});
  ASSERT_TRUE(planned) << planned.error().to_string();
  // Two layers: 4 heads of [12, 10], and 3 rows of 2 · 24 + 40 columns, in multiples of 64 bytes.
  EXPECT_EQ(planned->state_bytes, 2 * (1920 + 1088));
  EXPECT_EQ(planned->cache_bytes_per_token, 2 * 2 * 8 * 4);
}

TEST(RecurrentModels, DevicesWithoutOperationsAreRefusedByName) {
  const Checkpoint checkpoint = must(Checkpoint::open(golden_folder("qwen3_next")));
  for (const char* device : {"cuda", "opencl"}) {
    ModelOptions options;
    options.device = device;
    const std::string line =
        str("layer 0, gated DeltaNet: needs a device with this operation, which is a CPU; the "
            "device is of the kind ",
            device);
    const auto planned = plan(checkpoint, options);
    ASSERT_FALSE(planned);
    EXPECT_EQ(planned.error().kind, ErrorKind::kUnsupported);
    EXPECT_EQ(planned.error().to_string(), line);
    const auto explained = explain(checkpoint, options, must(Machine::find("h200")));
    ASSERT_TRUE(explained) << explained.error().to_string();
    if (options.device == "cuda") {
      EXPECT_EQ(explained->not_runnable, line);
    }
  }
}

}  // namespace
}  // namespace moracle::recurrent_state_test
