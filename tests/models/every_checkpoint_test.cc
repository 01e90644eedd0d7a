// Tests every available checkpoint on every known machine: a choice or an error for each layer, a
// verdict for each row, a reason for each "no".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "moracle/moracle.h"
#include "oracle/backend.h"
#include "support/stored_checkpoints.h"

namespace moracle::every_checkpoint_test {
namespace {

namespace fs = std::filesystem;

/// The scheme of the experts, by folder name.
std::string expected_scheme(const std::string& folder) {
  const std::map<std::string, std::string> kSchemes = {
      {"dsv3-fp8-block128", "fp8-w8a8-block128x128"},
      {"gptoss-bf16", "bf16"},
      {"gptoss-mxfp4", "mxfp4-w4a16"},
      {"qwen3moe-awq-int4-g128", "int4-w4a16-g128-asym"},
      {"qwen3moe-bf16", "bf16"},
      {"qwen3moe-ct-fp8-block", "fp8-w8a8-block128x128"},
      {"qwen3moe-ct-fp8-dynamic", "fp8-w8a8-channel"},
      {"qwen3moe-ct-w4a16-g128", "int4-w4a16-g128"},
      {"qwen3moe-ct-w8a8-int8", "int8-w8a8"},
      {"qwen3moe-fp8-block128", "fp8-w8a8-block128x128"},
      {"qwen3moe-gptq-int4-g128", "int4-w4a16-g128"},
      {"qwen3moe-gptq-int4-g32-act", "int4-w4a16-g32"},
      {"qwen3moe-gptq-int4-g64-asym", "int4-w4a16-g64-asym"},
      {"qwen3moe-gptq-int8-g128", "int8-w8a16-g128"},
      {"qwen3moe-gptqv2-int4-g128", "int4-w4a16-g128"},
      {"qwen3moe-modelopt-mxfp8", "mxfp8-w8a8"}};
  const auto found = kSchemes.find(fs::path(folder).filename().string());
  return found == kSchemes.end() ? "no scheme is written down here" : found->second;
}

class EveryCheckpoint : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryCheckpoint, HasVerdictOfEveryRowOnEveryMachine) {
  const auto checkpoint = Checkpoint::open(GetParam());
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  ASSERT_FALSE(checkpoint->moe_layers().empty());
  for (int64_t index : checkpoint->moe_layers()) {
    const auto layer = checkpoint->moe_layer(index);
    ASSERT_TRUE(layer) << layer.error().to_string();
    EXPECT_EQ(name(layer->spec.scheme), expected_scheme(GetParam()));
    for (const Machine& machine : Machine::known()) {
      SCOPED_TRACE(machine.name + ", " + layer->spec.name);
      const Selection selection = select({.layer = layer->spec}, machine);
      ASSERT_EQ(selection.considered.size(), backends().size());
      const Backend* first = nullptr;
      for (const Verdict& verdict : selection.considered) {
        for (const Reason& reason : verdict.reasons) {
          EXPECT_FALSE(reason.rule.empty());
          EXPECT_FALSE(reason.need.empty()) << reason.rule;
          EXPECT_FALSE(reason.have.empty()) << reason.rule;
        }
        if (verdict.accepted() && first == nullptr) first = verdict.backend;
      }
      const Result<Plan> plan = selection.chosen();
      ASSERT_EQ(plan.ok(), first != nullptr);
      if (plan) {
        EXPECT_EQ(plan->backend, first);
        EXPECT_EQ(plan->layer.scheme, layer->spec.scheme);
      }
    }
  }
}

TEST_P(EveryCheckpoint, OutlineAccountsForAllBytes) {
  const auto checkpoint = Checkpoint::open(GetParam());
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  const auto whole = outline(*checkpoint);
  ASSERT_TRUE(whole) << whole.error().to_string();
  int64_t bytes = 0, tensors = 0;
  std::string experts;
  for (const Outline::Part& part : whole->parts) {
    EXPECT_GT(part.num_tensors, 0) << part.what;
    bytes += part.bytes;
    tensors += part.num_tensors;
    if (part.what == "experts") experts = part.scheme;
  }
  EXPECT_EQ(bytes, checkpoint->total_bytes());
  EXPECT_GT(tensors, 0);
  EXPECT_EQ(experts, expected_scheme(GetParam()));
  EXPECT_EQ(whole->not_runnable, "");
  EXPECT_GT(whole->num_experts, 1);
  EXPECT_GT(whole->top_k, 0);
  EXPECT_EQ(whole->hidden_size,
            checkpoint->moe_layer(checkpoint->moe_layers()[0])->spec.hidden_size);
}

// Loading takes the planned memory.
TEST_P(EveryCheckpoint, PlanMatchesLoad) {
  const auto checkpoint = Checkpoint::open(GetParam());
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  const ModelOptions options{.threads = 2, .max_num_tokens = 32};
  const auto planned = plan(*checkpoint, options);
  ASSERT_TRUE(planned) << planned.error().to_string();
  const auto model = Model::load(*checkpoint, options);
  ASSERT_TRUE(model) << model.error().to_string();
  EXPECT_EQ(planned->weight_bytes, model->weight_bytes());
  ASSERT_EQ(planned->choices.size(), model->choices().size());
  for (size_t i = 0; i < planned->choices.size(); ++i) {
    const Choice &a = planned->choices[i], &b = model->choices()[i];
    EXPECT_EQ(a.part, b.part);
    EXPECT_EQ(a.layers, b.layers);
    EXPECT_EQ(a.selection.plan->backend, b.selection.plan->backend);
    EXPECT_EQ(describe(*a.selection.plan), describe(*b.selection.plan));
  }
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = fs::path(info.param).filename().string();
  std::replace(name.begin(), name.end(), '-', '_');
  return fs::path(info.param).parent_path().filename().string() + "_" + name;
}

INSTANTIATE_TEST_SUITE_P(Stored, EveryCheckpoint,
                         ::testing::ValuesIn(testing::checkpoints_with("config.json")), test_name);

}  // namespace
}  // namespace moracle::every_checkpoint_test
