// architecture.patch adds an imaginary architecture, AcmeMoeForCausalLM.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "checkpoint/synthetic_checkpoint.h"
#include "moracle/moracle.h"

namespace moracle::testing {
namespace {

using ::testing::HasSubstr;

/// A Qwen3-MoE of random numbers under Acme's names.
SyntheticCheckpoint acme(bool qk_norm) {
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"embed_tokens", "embedding"},
      {"input_layernorm", "attention_norm"},
      {"self_attn", "attention"},
      {"post_attention_layernorm", "experts_norm"},
      {"q_proj", "wq"},
      {"k_proj", "wk"},
      {"v_proj", "wv"},
      {"o_proj", "wo"},
      {"mlp.experts", "moe.units"},
      {"mlp", "moe"},
      {"gate_proj", "wg"},
      {"up_proj", "wu"},
      {"down_proj", "wd"},
      {"model.norm.", "model.last_norm."},
      {"lm_head", "head"}};
  SyntheticCheckpoint checkpoint = SyntheticCheckpoint::plain();
  for (const auto& [name, tensor] : std::map(checkpoint.tensors)) {
    std::string renamed = name;
    for (const auto& [from, to] : kNames) {
      const size_t at = renamed.find(from);
      if (at != renamed.npos) renamed.replace(at, std::string_view(from).size(), to);
    }
    if (renamed != name) checkpoint.rename(name, renamed);
    if (!qk_norm && name.find("_norm.weight") != name.npos) checkpoint.remove(renamed);
  }
  checkpoint.config["architectures"] = {"AcmeMoeForCausalLM"};
  checkpoint.config["use_qk_norm"] = qk_norm;
  constexpr std::pair<const char*, const char*> kSizes[] = {
      {"num_experts", "units"},
      {"num_experts_per_tok", "units_per_token"},
      {"moe_intermediate_size", "unit_width"}};
  for (const auto& [key, renamed] : kSizes) {
    checkpoint.config[renamed] = checkpoint.config[key];
    checkpoint.config.erase(key);
  }
  checkpoint.config.erase(
      "norm_topk_prob");  // the family renormalizes sigmoids unless told otherwise
  return checkpoint;
}

/// The same numbers as a Qwen3-MoE whose config.json spells Acme's routing out.
SyntheticCheckpoint same_as_qwen() {
  SyntheticCheckpoint checkpoint = SyntheticCheckpoint::plain();
  checkpoint.config["scoring_func"] = "sigmoid";
  checkpoint.config["norm_topk_prob"] = true;
  return checkpoint;
}

/// The logits of the last of a few tokens, and those of the tokens that follow.
struct Output {
  std::vector<float> logits;
  std::vector<int32_t> ids;
};

Result<Output> run(const SyntheticCheckpoint& written) {
  MORACLE_TRY(const Checkpoint checkpoint, written.open());
  MORACLE_TRY(Model model, Model::load(checkpoint, {.threads = 1}));
  const std::vector<int32_t> prompt = {3, 1, 4, 1, 5};
  MORACLE_TRY(KvCache cache, model.make_cache(16));
  const Model::Step step{prompt, &cache};
  MORACLE_CHECK(model.forward({&step, 1}));
  MORACLE_TRY(const auto logits, model.logits(4, 1));
  Output output{{logits.begin(), logits.end()}, {}};
  MORACLE_TRY(const Generation generated, generate(model, prompt, {.max_tokens = 6}));
  output.ids = generated.ids;
  return output;
}

void scale(SyntheticCheckpoint& checkpoint, const std::string& part, float factor) {
  for (auto& [name, tensor] : checkpoint.tensors) {
    if (name.find(part) == name.npos) continue;
    for (size_t i = 0; i < tensor.bytes.size() / 2; ++i) {
      const float value = bf16_to_float(checkpoint.get<uint16_t>(name, i));
      checkpoint.set(name, i, float_to_bf16(value * factor));
    }
  }
}

TEST(Architecture, ComputesTheSameUnderItsOwnNamesSizesAndRouting) {
  const auto want = run(same_as_qwen());
  const auto got = run(acme(true));
  ASSERT_TRUE(want) << want.error().to_string();
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_EQ(got->logits, want->logits);
  EXPECT_EQ(got->ids, want->ids);
  EXPECT_EQ(got->ids.size(), 6u);
}

// Without norms on q and k the scores are bilinear in them; a norm would hide a factor of either.
TEST(Architecture, KeepsQAndKWithoutNorms) {
  SyntheticCheckpoint checkpoint = acme(false);
  const auto want = run(checkpoint);
  ASSERT_TRUE(want) << want.error().to_string();
  scale(checkpoint, "attention.wq", 2);
  const auto sharper = run(checkpoint);
  ASSERT_TRUE(sharper) << sharper.error().to_string();
  double difference = 0;
  for (size_t i = 0; i < want->logits.size(); ++i)
    difference = std::max<double>(difference, std::fabs(sharper->logits[i] - want->logits[i]));
  EXPECT_GT(difference, 1e-2);
  scale(checkpoint, "attention.wk", 0.5f);
  const auto same = run(checkpoint);
  ASSERT_TRUE(same) << same.error().to_string();
  EXPECT_EQ(same->logits, want->logits);
}

TEST(Architecture, ReadsEveryTensor) {
  SyntheticCheckpoint checkpoint = acme(true);
  checkpoint.config["use_qk_norm"] = false;
  const auto left = run(checkpoint);
  ASSERT_FALSE(left);
  EXPECT_THAT(left.error().to_string(), HasSubstr("attention.k_norm.weight"));
  checkpoint = acme(true);
  checkpoint.remove("model.layers.1.attention.wo.weight");
  const auto missing = run(checkpoint);
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().to_string(), HasSubstr("model.layers.1.attention.wo.weight"));
}

}  // namespace
}  // namespace moracle::testing
