// Tests --parallel on the command line.
#include <nlohmann/json.hpp>
#include <string>

#include "run_command.h"

namespace moracle::parallel_text_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::expect_refused;
using ::testing::HasSubstr;
using testing::run_command;
using testing::small_model;

TEST(ParallelOption, ExplainShowsModeAndSentBytes) {
  const std::string model = small_model();
  if (model.empty()) GTEST_SKIP() << "no model beside the clone";
  const auto text = run_command({"explain", model, "--parallel", "ep=2,mode=dispatched"});
  EXPECT_THAT(text.out, HasSubstr("2 ranks, dispatched, linear placement"));
  EXPECT_THAT(text.out, HasSubstr("> dispatched, per token and layer"));
  const auto json = run_command({"explain", model, "--parallel", "mode=dispatched,ep=2", "--json"});
  EXPECT_EQ(Json::parse(json.out)["parallel"]["mode"], "dispatched");
}

TEST(ParallelOption, ExplainShowsRequestedExchange) {
  const std::string model = small_model();
  if (model.empty()) GTEST_SKIP() << "no model beside the clone";
  const auto json = run_command({"explain", model, "--json", "--machine", "h200", "--parallel",
                                 "ep=2,mode=dispatched", "--exchange", "nccl"});
  EXPECT_EQ(Json::parse(json.out)["parallel"]["chosen"], "nccl");
  expect_refused(
      {"explain", model, "--parallel", "ep=2", "--exchange", "pigeons"},
      {"--exchange: needs one of auto, one, cuda-peer, nccl, host; 'pigeons' is unknown"});
}

TEST(ParallelOption, RejectsInvalidTextWithReason) {
  const std::string model = small_model();
  if (model.empty()) GTEST_SKIP() << "no model beside the clone";
  const auto refuse = [&](const std::string& text, std::initializer_list<std::string> parts) {
    expect_refused({"explain", model, "--parallel", text}, parts);
  };
  refuse("mode=dispatched", {"--parallel", "needs ep=N"});
  refuse("ep=2,mode=fast", {"mode=replicated (every rank has the same tokens)", "ep=2,mode=fast"});
  refuse("ep=0", {"a whole number from 1 to 4096"});
  refuse("ep=2,", {"ep=N, the number of ranks that share the experts"});
  for (const char* twice :
       {"ep=2,ep=3", "ep=2,ep=2", "ep=2,tp=2,tp=2", "mode=replicated,ep=2,mode=dispatched"})
    refuse(twice, {"--parallel: needs each key once", twice});
  refuse("ep=4,tp=2", {"tp=1 or tp=4"});
  refuse("ep=2,tp=2,mode=dispatched", {"mode=replicated for tp"});
  refuse("ep=4,lm_head=2", {"lm_head=1 or lm_head=4"});
  refuse("ep=2,lm_head=2,mode=dispatched", {"mode=replicated for lm_head"});
}

TEST(ParallelOption, ExplainShowsRowsAndMemoryOfLmHead) {
  const std::string model = small_model();
  if (model.empty()) GTEST_SKIP() << "no model beside the clone";
  const auto lm_head = [&](const std::string& parallel) {
    const auto json = run_command({"explain", model, "--parallel", parallel, "--json"});
    return Json::parse(json.out)["parallel"]["lm_head"];
  };
  const Json whole = lm_head("ep=2"), divided = lm_head("ep=2,lm_head=2");
  EXPECT_EQ(divided["rows"], whole["rows"].get<int64_t>() / 2);
  EXPECT_EQ(divided["weight_bytes"], whole["weight_bytes"].get<int64_t>() / 2);
  EXPECT_EQ(lm_head("ep=2,tp=2"), divided);
  EXPECT_EQ(lm_head("ep=2,tp=2,lm_head=1"), whole);
  const auto text = run_command({"explain", model, "--parallel", "ep=2,lm_head=2"});
  EXPECT_THAT(text.out, HasSubstr("2 ranks, replicated, lm_head divided, linear placement"));
  EXPECT_THAT(text.out, HasSubstr("rows of lm_head on rank 0"));
}

TEST(ParallelOption, RunRejectsDispatchedRanksWithOnePrompt) {
  const std::string model = small_model();
  if (model.empty()) GTEST_SKIP() << "no model beside the clone";
  const std::string dispatched = "ep=2,mode=dispatched";
  expect_refused({"run", model, "-p", "a", "--parallel", dispatched},
                 {"needs mode=replicated, or several prompts", "there is one prompt"});
}

}  // namespace
}  // namespace moracle::parallel_text_test
