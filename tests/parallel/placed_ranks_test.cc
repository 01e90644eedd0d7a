// Models on ranks, each of which has some of its experts in slots.
#include <gmock/gmock.h>

#include <mutex>

#include "model_on_ranks.h"
#include "models/placed_models.h"
#include "ranks_of_threads.h"
#include "support/sample.h"
#include "support/temporary_folder.h"

namespace moracle::placed_ranks_test {
namespace {

using namespace testing;
using namespace testing::placed;
using ::testing::HasSubstr;

/// Options of a rank with memory for nearly all of its experts.
ModelOptions placed_on(const std::shared_ptr<Group>& group, const Checkpoint& checkpoint) {
  ModelOptions options = options_on(group, false, Placement::kRoundRobin);
  options.max_num_tokens = 4;
  options.cache_bytes = 1 << 20;
  const ModelPlan whole = must(plan(checkpoint, options));
  options.device_memory = whole.total_bytes() + options.cache_bytes - 1;
  return options;
}

// Moves depend on each rank's own calls; the sum is the same on all ranks.
TEST(PlacedOnRanks, MatchOneProcessForEveryArchitecture) {
  int compared = 0;
  for (const std::string& name : sample_of(golden_models(), "PlacedOnRanks")) {
    if (!has_experts(name)) continue;
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = must(Checkpoint::open(golden_folder(name)));
    const std::vector<int32_t> ids = golden_reference(name).ids;
    Model whole = must(Model::load(checkpoint, {.threads = 1, .max_num_tokens = 32}));
    const std::vector<float> want = logits_of_steps(whole, ids);
    std::mutex mutex;
    std::vector<std::vector<float>> all;
    int64_t moves = 0, hits = 0;
    on_ranks(2, [&](const std::shared_ptr<Group>& group) {
      const Checkpoint own = must(Checkpoint::open(golden_folder(name)));
      const ModelOptions options = placed_on(group, own);
      Model model = must(Model::load(own, options));
      set_eager_policy(model);
      std::vector<float> logits = logits_of_steps(model, ids);
      const std::lock_guard lock(mutex);
      EXPECT_LE(share_of_error(logits, want), logit_bound(whole.choices(), model.choices()));
      all.push_back(std::move(logits));
      moves += model.placement_counts().moves;
      hits += model.placement_counts().hits;
    });
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0], all[1]);
    EXPECT_GT(moves, 0);
    EXPECT_GT(hits, 0);
    ++compared;
  }
  EXPECT_GE(compared, 25 / Sample::kStep);
}

TEST(PlacedOnRanks, ReloadMatchesColdLoad) {
  const std::string name = "qwen3_moe";
  SyntheticCheckpoint other = golden_model(name);
  for (auto& [tensor, t] : other.tensors) {  // other signs
    const auto size = static_cast<size_t>(bits(t.dtype) / 8);
    for (size_t i = size - 1; i < t.bytes.size(); i += size) t.bytes[i] ^= std::byte{0x80};
  }
  const TemporaryFolder folder;
  must(other.write(folder.path()));
  const std::vector<int32_t> ids = golden_reference(name).ids;
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const Checkpoint before = must(Checkpoint::open(golden_folder(name))),
                     after = must(Checkpoint::open(folder.path()));
    const ModelOptions options = placed_on(group, before);
    Model model = must(Model::load(before, options)), cold = must(Model::load(after, options));
    must(model.reload(after));
    EXPECT_LE(share_of_error(logits_of_steps(model, ids), logits_of_steps(cold, ids)),
              logit_bound(model.choices(), cold.choices()));
  });
}

}  // namespace
}  // namespace moracle::placed_ranks_test
