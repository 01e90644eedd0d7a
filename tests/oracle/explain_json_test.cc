// Tests the JSON of selections, which the command, Python and C share.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "moracle/oracle.h"
#include "oracle/backend.h"
#include "support/must.h"

namespace moracle::explain_json_test {
namespace {

using nlohmann::json;

Selection select_named(const std::string& backend, std::string layer_name = "experts") {
  Request request;
  request.layer = {.name = std::move(layer_name),
                   .num_experts = 8,
                   .hidden_size = 256,
                   .intermediate_size = 128,
                   .top_k = 2};
  request.backend = backend;
  return select(request, testing::must(Machine::find("h200")));
}

TEST(ExplainJson, HoldsEveryVerdictAndEveryReason) {
  const Selection selection = select_named("auto");
  const json text = json::parse(explain_json(selection));
  EXPECT_EQ(text["layer"], describe(selection.request.layer));
  EXPECT_EQ(text["scheme"], "bf16");
  EXPECT_EQ(text["chosen"], selection.plan->backend->name);
  EXPECT_EQ(text["weight_bytes"], selection.plan->weight_bytes);
  EXPECT_EQ(text["plan"]["backend"], selection.plan->backend->name);
  ASSERT_EQ(text["considered"].size(), selection.considered.size());
  for (size_t i = 0; i < selection.considered.size(); ++i) {
    const Verdict& verdict = selection.considered[i];
    const json& row = text["considered"][i];
    EXPECT_EQ(row["backend"], verdict.backend->name);
    EXPECT_EQ(row["accepted"], verdict.accepted());
    ASSERT_EQ(row["reasons"].size(), verdict.reasons.size());
    for (size_t j = 0; j < verdict.reasons.size(); ++j) {
      EXPECT_EQ(row["reasons"][j]["rule"], verdict.reasons[j].rule);
      EXPECT_EQ(row["reasons"][j]["need"], verdict.reasons[j].need);
      EXPECT_EQ(row["reasons"][j]["have"], verdict.reasons[j].have);
    }
  }
}

TEST(ExplainJson, ChoiceOfUnservedLayerIsNull) {
  const json text = json::parse(explain_json(select_named("opencl-vectors")));
  EXPECT_TRUE(text["chosen"].is_null());
  EXPECT_TRUE(text["plan"].is_null());
  EXPECT_TRUE(text["weight_bytes"].is_null());
}

TEST(ExplainJson, ReplacesInvalidUtf8) {
  // The rule `backend` quotes the name, which no row has.
  const std::string text =
      explain_json(select_named("no\xff"
                                "body"));
  EXPECT_TRUE(json::accept(text)) << text;
  EXPECT_NE(text.find("no\xef\xbf\xbd"), std::string::npos) << text;
}

}  // namespace
}  // namespace moracle::explain_json_test
