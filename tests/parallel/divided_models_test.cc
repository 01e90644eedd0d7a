// Tiny models with tensor parallelism of attention and dense layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "base/checksum.h"
#include "model_on_ranks.h"
#include "ranks_of_threads.h"
#include "support/model_words.h"
#include "support/sample.h"

namespace moracle::divided_models_test {
namespace {

using testing::golden_folder;
using testing::golden_models;
using ::testing::HasSubstr;
using testing::on_ranks;
using testing::options_on;

struct Divided {
  std::vector<std::string> errors;  // of each rank; empty: none
  std::vector<double> differences;  // from one process
  std::vector<double> bounds;       // of the differences
  std::vector<uint64_t> checksums;  // of the logits
  std::vector<int64_t> weight_bytes;
  int64_t whole_bytes = 0;
};

// `quantization`: only sums over shares differ for weights that are quantized while loading.
Divided run_divided(int64_t size, const std::string& name, const std::string& quantization = "",
                    bool deterministic = false) {
  Divided all;
  all.errors.resize(size), all.differences.resize(size), all.bounds.resize(size);
  all.checksums.resize(size);
  all.weight_bytes.resize(size);
  const std::vector<int32_t> ids = testing::golden_reference(name).ids;
  on_ranks(size, [&](const std::shared_ptr<Group>& group) {
    const int64_t rank = group->rank();
    std::vector<Choice> choices[2];
    const auto run = [&](const ModelOptions& options, int64_t& bytes,
                         std::vector<Choice>& chosen) -> Result<std::vector<float>> {
      MORACLE_TRY(const Checkpoint checkpoint, Checkpoint::open(golden_folder(name)));
      MORACLE_TRY(Model model, Model::load(checkpoint, options));
      bytes = model.weight_bytes();
      chosen = model.choices();
      return testing::all_logits(model, ids);
    };
    ModelOptions alone = options_on(nullptr, deterministic, Placement::kLinear),
                 ranks = options_on(group, deterministic, Placement::kLinear);
    alone.quantization = ranks.quantization = testing::quantization(quantization);
    ranks.tp_size = ranks.lm_head_size = size;  // as --parallel tp=N
    int64_t whole_bytes = 0;
    const auto got = run(ranks, all.weight_bytes[rank], choices[0]);
    if (!got) {
      all.errors[rank] = got.error().to_string();
      return;
    }
    const auto want = run(alone, whole_bytes, choices[1]);
    all.differences[rank] = testing::relative_difference(*got, *want);
    all.bounds[rank] = testing::logit_bound(choices[0], choices[1]);
    all.checksums[rank] = checksum(std::as_bytes(std::span(*got)));
    if (rank == 0) all.whole_bytes = whole_bytes;
  });
  return all;
}

// Models whose attention is not divided, and the reason.
std::string refusal(const std::string& name) {
  if (name == "lfm2_moe") return "a short convolution is not divided";
  if (name.starts_with("qwen3_next") || name.starts_with("qwen3_5"))
    return "gated DeltaNet is not divided";
  if (name.starts_with("granite_moe_hybrid")) return "Mamba-2 is not divided";
  if (name.starts_with("kimi_linear") || name.starts_with("bailing_hybrid"))
    return "Kimi Delta Attention is not divided";
  if (name == "minimax" || name == "minimax_even") return "lightning attention is not divided";
  if (name.starts_with("olmoe") || name.starts_with("flex_olmo") || name.starts_with("minimax_m2"))
    return "a norm spans the heads of all ranks";
  if (name.starts_with("nemotron_h")) return "Mamba-2 is not divided";
  if (name == "gemma4" || name == "mimo_v2_flash")
    return "heads of keys and values that 2 ranks divide; there are 1";
  return "";
}

class DividedModels : public ::testing::TestWithParam<std::string> {};

TEST_P(DividedModels, TwoRanksMatchOneProcessOrRefuseWithTheReason) {
  const Divided got = run_divided(2, GetParam());
  for (int64_t rank = 0; rank < 2; ++rank) {
    if (const std::string reason = refusal(GetParam()); !reason.empty()) {
      EXPECT_THAT(got.errors[rank], HasSubstr(reason));
      continue;
    }
    EXPECT_EQ(got.errors[rank], "");
    EXPECT_LT(got.differences[rank], got.bounds[rank]);
    EXPECT_EQ(got.checksums[rank], got.checksums[0]) << "ranks have different bits";
  }
}
// Both ranks keep the only index head, which chooses blocks for the heads of keys of each.
TEST(DividedIndexer, RanksKeepTheHeadsThatServeTheirKeys) {
  const Divided got = run_divided(2, "../multimodal/minimax_m3");
  for (int64_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(got.errors[rank], "");
    EXPECT_LT(got.differences[rank], got.bounds[rank]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, DividedModels,
                         ::testing::ValuesIn(testing::sample_of(golden_models(), "DividedModels")),
                         [](const auto& one) { return one.param; });

// Each rank packs half of attention, dense MLPs, shared experts and experts.
TEST(DividedModels, EachRankKeepsOnlyItsShare) {
  const Divided got = run_divided(2, "deepseek_v3");
  ASSERT_EQ(got.errors[0], "");
  for (const int64_t bytes : got.weight_bytes) EXPECT_LT(bytes, got.whole_bytes * 3 / 4);
}

TEST(DividedModels, TwoRunsHaveTheSameBits) {
  for (const bool deterministic : {false, true}) {
    const Divided first = run_divided(2, "qwen2_moe", "", deterministic),
                  second = run_divided(2, "qwen2_moe", "", deterministic);
    EXPECT_EQ(first.errors[0], "");
    EXPECT_EQ(first.checksums, second.checksums);
  }
}

TEST(DividedModels, QuantizedSharesAreThoseOfTheWholeMatrix) {
  const Divided got = run_divided(2, "qwen3_moe", "*.self_attn.*=int8-per-channel-weight-only");
  EXPECT_EQ(got.errors[0], "");
  EXPECT_LT(got.differences[0], got.bounds[0]);
}

TEST(DividedModels, HeadsThatRanksDoNotDivideAreRefused) {
  const Divided got = run_divided(3, "qwen3_moe");
  for (const std::string& error : got.errors)
    EXPECT_THAT(error,
                HasSubstr("layer 0, tp=3: needs a number of query heads that 3 ranks divide"));
}

}  // namespace
}  // namespace moracle::divided_models_test
