// Tiny models on ranks that divide the rows of lm_head.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "models/description.h"
#include "same_bits.h"
#include "support/model_words.h"
#include "support/sample.h"

namespace moracle::divided_output_test {
namespace {

using testing::golden_folder;
using testing::golden_models;
using testing::golden_reference;
using ::testing::HasSubstr;
using testing::on_ranks;
using testing::options_on;

ModelOptions divided_on(const std::shared_ptr<Group>& group) {
  ModelOptions options = options_on(group, true, Placement::kLinear);
  options.lm_head_size = group->size();
  return options;
}

void expect_bits_of_one_process(const std::string& name, int64_t size,
                                const std::string& quantization = "") {
  testing::expect_bits_of_one_process(
      name, size, [&](ModelOptions& options, const std::shared_ptr<Group>& group) {
        options.quantization = testing::quantization(quantization);
        if (group) options.lm_head_size = group->size();
      });
}

class DividedOutput : public ::testing::TestWithParam<std::string> {};

// Three ranks have 14, 13 and 13 of 40 rows.
TEST_P(DividedOutput, ThreeRanksHaveTheBitsOfOneProcess) {
  expect_bits_of_one_process(GetParam(), 3);
}
INSTANTIATE_TEST_SUITE_P(All, DividedOutput,
                         ::testing::ValuesIn(testing::sample_of(golden_models(), "DividedOutput")),
                         [](const auto& one) { return one.param; });

TEST(DividedOutput, TwoAndFourRanksHaveTheBitsOfOneProcess) {
  for (const char* name : {"qwen3_moe", "deepseek_v3", "gemma4"})
    for (const int64_t size : {2, 4}) expect_bits_of_one_process(name, size);
}

TEST(DividedOutput, QuantizedRowsHaveTheBitsOfOneProcess) {
  expect_bits_of_one_process("qwen3_moe", 3, "lm_head=int8-per-channel-weight-only");
}

// k = 20 is more than the rows of any rank.
TEST(DividedOutput, LargestLogitsAreThoseOfOneProcess) {
  const std::vector<int32_t> ids = golden_reference("qwen3_moe").ids;
  const auto count = static_cast<int64_t>(ids.size());
  using Largest = std::pair<std::vector<int32_t>, std::vector<float>>;
  const auto largest = [&](const ModelOptions& options, int64_t k) -> Result<Largest> {
    MORACLE_TRY(const Checkpoint checkpoint, Checkpoint::open(golden_folder("qwen3_moe")));
    MORACLE_TRY(Model model, Model::load(checkpoint, options));
    MORACLE_TRY(KvCache cache, model.make_cache(count));
    const Model::Step step{ids, &cache};
    MORACLE_CHECK(model.forward({&step, 1}));
    MORACLE_TRY(const Model::TopKLogits found, model.top_k_logits(1, count - 1, k));
    return Largest{{found.ids.begin(), found.ids.end()},
                   {found.logits.begin(), found.logits.end()}};
  };
  for (const int64_t k : {1, 5, 20, 40}) {
    const auto alone = largest(options_on(nullptr, true, Placement::kLinear), k);
    ASSERT_TRUE(alone) << alone.error().to_string();
    std::mutex mutex;
    on_ranks(3, [&](const std::shared_ptr<Group>& group) {
      const auto got = largest(divided_on(group), k);
      const std::lock_guard lock(mutex);
      ASSERT_TRUE(got) << got.error().to_string();
      EXPECT_EQ(*got, *alone) << "k " << k;
    });
  }
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    for (const int64_t k : {0, 41}) EXPECT_FALSE(largest(divided_on(group), k));
  });
}

TEST(DividedOutput, EachRankReadsAndKeepsItsRows) {
  const auto load = [](const ModelOptions& options, ReadRecord::Sum& own) {
    const Checkpoint checkpoint = *Checkpoint::open(golden_folder("qwen3_moe"));
    const auto model = Model::load(checkpoint, options);
    EXPECT_TRUE(model) << model.error().to_string();
    own = checkpoint.state().tensors.record().only_here();
    return model->weight_bytes();
  };
  std::mutex mutex;
  int64_t whole[3] = {}, divided[3] = {}, whole_read = 0, divided_read = 0;
  on_ranks(3, [&](const std::shared_ptr<Group>& group) {
    ReadRecord::Sum with, without;
    const int64_t all = load(options_on(group, true, Placement::kLinear), without);
    const int64_t share = load(divided_on(group), with);
    const std::lock_guard lock(mutex);
    whole[group->rank()] = all, divided[group->rank()] = share;
    whole_read += without.bytes, divided_read += with.bytes;
  });
  for (int64_t rank = 0; rank < 3; ++rank) EXPECT_LT(divided[rank], whole[rank]);
  // The rows of lm_head, once over all ranks.
  const Checkpoint checkpoint = *Checkpoint::open(golden_folder("qwen3_moe"));
  const Description description = *describe(checkpoint);
  const MatrixShape& shape = description.output.shape();
  EXPECT_EQ(divided_read - whole_read, shape.n * shape.k * bits(shape.key.dtype) / 8);
}

TEST(DividedOutput, ReloadedRowsAreThoseOfTheNewCheckpoint) {
  const std::vector<int32_t> ids = golden_reference("qwen3_moe").ids;
  on_ranks(3, [&](const std::shared_ptr<Group>& group) {
    const Checkpoint checkpoint = *Checkpoint::open(golden_folder("qwen3_moe"));
    auto model = Model::load(checkpoint, divided_on(group));
    ASSERT_TRUE(model) << model.error().to_string();
    const auto before = testing::all_logits(*model, ids);
    const Status reloaded = model->reload(*Checkpoint::open(golden_folder("qwen3_moe")));
    ASSERT_TRUE(reloaded) << reloaded.error().to_string();
    EXPECT_EQ(*testing::all_logits(*model, ids), *before);
  });
}

TEST(DividedOutput, SharesAreWholeBlocksOfRows) {
  const OutputShares even{4, 0, 151936, 128};  // 1,187 blocks
  EXPECT_EQ(even.rows(0), 297 * 128);
  EXPECT_EQ(even.rows(3), 296 * 128);
  const OutputShares odd{3, 0, 1000, 128};  // 8 blocks, the last one of 104 rows
  EXPECT_EQ(odd.rows(0), 3 * 128);
  EXPECT_EQ(odd.first(2), 6 * 128);
  EXPECT_EQ(odd.rows(2), 1000 - 6 * 128);
  EXPECT_EQ(odd.first(3), 1000);
}

TEST(DividedOutput, MoreRanksThanRowsAreRefused) {
  ModelOptions options;
  options.parallel.ep_size = options.lm_head_size = 41;
  const auto planned = plan(*Checkpoint::open(golden_folder("qwen3_moe")), options);
  ASSERT_FALSE(planned);
  EXPECT_THAT(planned.error().to_string(),
              HasSubstr("lm_head, on 41 ranks: needs at least 41 blocks of 1 rows with a scale; it "
                        "has 40 rows"));
}

TEST(DividedOutput, DispatchedRanksAreRefused) {
  on_ranks(2, [](const std::shared_ptr<Group>& group) {
    ModelOptions options = divided_on(group);
    options.spread = Spread::kDispatched;
    const auto model = Model::load(*Checkpoint::open(golden_folder("qwen3_moe")), options);
    ASSERT_FALSE(model);
    EXPECT_THAT(model.error().to_string(),
                HasSubstr("needs lm_head=1, or lm_head=2 with the same tokens on all ranks"));
  });
}

}  // namespace
}  // namespace moracle::divided_output_test
