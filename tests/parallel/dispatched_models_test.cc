// Tiny models on ranks with their own sequences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "dispatched_on_ranks.h"
#include "models/expert_moves.h"
#include "ranks_of_threads.h"
#include "support/must.h"
#include "support/sample.h"

namespace moracle::dispatched_models_test {
namespace {

using testing::golden_folder;
using testing::golden_models;
using ::testing::HasSubstr;
using testing::must;
using testing::on_ranks;
using testing::options_on;

std::string errors_on(int64_t size, const std::string& model, Placement placement,
                      const std::string& quantization = "") {
  std::mutex mutex;
  std::string errors;
  on_ranks(size, [&](const std::shared_ptr<Group>& group) {
    const Status done = testing::check_dispatched(model, group, placement, quantization);
    if (done) return;
    group->abort(done.error());
    const std::lock_guard lock(mutex);
    errors += str("rank ", group->rank(), ": ", done.error().to_string(), "\n");
  });
  return errors;
}

class DispatchedModels : public ::testing::TestWithParam<std::string> {};

// Three ranks do not divide 4 or 8 experts; the second has no sequence.
TEST_P(DispatchedModels, ThreeRanksMatchOneProcess) {
  EXPECT_EQ(errors_on(3, GetParam(), Placement::kRoundRobin), "");
}
INSTANTIATE_TEST_SUITE_P(All, DispatchedModels,
                         ::testing::ValuesIn(testing::sample_of(golden_models(),
                                                                "DispatchedModels")),
                         [](const auto& one) { return one.param; });

TEST(DispatchedModels, EachNumberOfRanksMatchesOneProcess) {
  for (const int64_t size : {1, 2, 4})
    EXPECT_EQ(errors_on(size, "qwen3_moe", Placement::kLinear), "") << size << " ranks";
}

TEST(DispatchedModels, RanksWithoutExpertsTakePart) {
  EXPECT_EQ(errors_on(6, "mixtral", Placement::kLinear), "");  // 4 experts
}

TEST(DispatchedModels, QuantizedModelsHaveTheBitsOfOneProcess) {
  for (const char* scheme : {"int8-per-channel", "int8-per-channel-weight-only", "fp8-per-block"})
    EXPECT_EQ(errors_on(3, "qwen3_moe", Placement::kLinear, scheme), "") << scheme;
}

// The error of a step that did not begin belongs to its rank alone, which may run another step.
TEST(DispatchedModels, RefusedStepOfOneRankKeepsOtherRanksWaiting) {
  std::mutex mutex;
  std::vector<std::string> errors;
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    ModelOptions options = options_on(group, true, Placement::kLinear);
    options.spread = Spread::kDispatched;
    auto model = Model::load(*Checkpoint::open(golden_folder("qwen3_moe")), options);
    ASSERT_TRUE(model) << model.error().to_string();
    auto cache = model->make_cache(8);
    const std::vector<int32_t> good = {1, 2, 3}, outside = {1, 1 << 30};
    if (group->rank() == 0) {
      const Model::Step bad{outside, &*cache};
      const std::lock_guard lock(mutex);
      errors.push_back(model->forward({&bad, 1}).error().to_string());
    }
    const Model::Step step{good, &*cache};
    EXPECT_TRUE(model->forward({&step, 1}));
    EXPECT_TRUE(model->rest());
  });
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_THAT(errors[0], HasSubstr("token id: needs 0 to "));
}

// Each rank counts its own tokens; rank 1 has twice as many, which one process counts together.
TEST(DispatchedModels, CountedTokensOfRanksAddUpToThoseOfOneProcess) {
  const std::string folder = golden_folder("qwen3_moe");
  const std::vector<int32_t> ids = testing::golden_reference("qwen3_moe").ids;
  ModelOptions one = options_on(nullptr, true, Placement::kLinear);
  one.count_routing = true;
  Model alone = must(Model::load(must(Checkpoint::open(folder)), one));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(testing::all_logits(alone, ids));
  const auto want = must(alone.routing_statistics()).tokens;
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    ModelOptions options = options_on(group, true, Placement::kLinear);
    options.spread = Spread::kDispatched;
    options.count_routing = true;
    Model model = must(Model::load(must(Checkpoint::open(folder)), options));
    for (int64_t i = 0; i <= group->rank(); ++i) must(testing::all_logits(model, ids));
    must(model.rest());
    const auto own = must(model.routing_statistics()).tokens,
               all = must(routing_of_all_ranks(model)).tokens;
    EXPECT_EQ(all, want);
    EXPECT_NE(own, want);
  });
}

}  // namespace
}  // namespace moracle::dispatched_models_test
