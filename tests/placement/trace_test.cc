#include "placement/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/must.h"

namespace moracle::trace_test {
namespace {

using ::testing::HasSubstr;

TraceOptions small() {
  return {.num_steps = 40, .num_layers = 3, .num_experts = 16, .top_k = 4, .seed = 7};
}

std::string file_with(const std::string& text) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "trace.json";
  std::ofstream(path) << text;
  return path;
}

TEST(RoutingTrace, GeneratedTokensChooseDistinctExpertsRepeatably) {
  for (const double persistence : {0.0, 0.785, 1.0}) {
    TraceOptions options = small();
    options.persistence = persistence;
    const RoutingTrace trace = generate_trace(options);
    ASSERT_EQ(trace.num_steps(), 40);
    for (int64_t step = 0; step < 40; ++step) {
      for (int64_t layer = 0; layer < 3; ++layer) {
        const auto ids = trace.chosen(step, layer);
        std::set<int32_t> distinct(ids.begin(), ids.end());
        EXPECT_EQ(distinct.size(), 4u);
        EXPECT_GE(*distinct.begin(), 0);
        EXPECT_LT(*distinct.rbegin(), 16);
      }
    }
    EXPECT_EQ(generate_trace(options), trace);
    options.seed = 8;
    EXPECT_NE(generate_trace(options), trace);
  }
}

TEST(RoutingTrace, GeneratesEveryExpertWhereTopKIsAll) {
  TraceOptions options = small();
  options.top_k = options.num_experts, options.recency = 0.001;
  const RoutingTrace trace = generate_trace(options);
  EXPECT_EQ(lru_hit_rate(trace, 16, 1), 1);
}

// llama.cpp #27861 publishes about 10 %, 67 % and 81 % for 512 experts, top-10.
TEST(RoutingTrace, DefaultsGivePublishedHitRates) {
  const RoutingTrace trace = generate_trace(
      {.num_steps = 3000, .num_layers = 3, .num_experts = 512, .top_k = 10, .seed = 1});
  EXPECT_NEAR(static_hit_rate(trace, 32), 0.10, 0.02);
  EXPECT_NEAR(lru_hit_rate(trace, 64, 200), 0.67, 0.015);
  EXPECT_NEAR(lru_hit_rate(trace, 128, 200), 0.81, 0.02);
}

TEST(RoutingTrace, LruRateOfHandMadeTrace) {
  const RoutingTrace trace{1, 4, 1, {0, 1, 0, 2, 1}};
  EXPECT_DOUBLE_EQ(lru_hit_rate(trace, 2), 1.0 / 5) << "1 was evicted by 2";
  EXPECT_DOUBLE_EQ(lru_hit_rate(trace, 3), 2.0 / 5);
  EXPECT_DOUBLE_EQ(lru_hit_rate(trace, 3, 2), 2.0 / 3);
  EXPECT_DOUBLE_EQ(lru_hit_rate(trace, 0), 0);
  EXPECT_DOUBLE_EQ(static_hit_rate({1, 4, 1, {0, 0, 1, 0, 0, 2}}, 1), 2.0 / 3);
}

TEST(RoutingTrace, ReadsWhatItWrites) {
  const RoutingTrace trace = generate_trace(small());
  EXPECT_EQ(testing::must(RoutingTrace::open(file_with(trace.json()))), trace);
}

TEST(RoutingTrace, NamesPlaceOfWrongContent) {
  const std::string head = R"({"format":"moracle routing trace 1","num_layers":1,)";
  const auto error = [&](const std::string& text) {
    const Result<RoutingTrace> trace = RoutingTrace::open(file_with(text));
    return trace ? "accepted" : trace.error().to_string();
  };
  EXPECT_THAT(error("{}"), HasSubstr("format: needs \"moracle routing trace 1\""));
  EXPECT_THAT(error(head + R"("num_experts":4,"top_k":5,"steps":[]})"), HasSubstr("top_k"));
  EXPECT_THAT(error(head + R"("num_experts":4,"top_k":2,"steps":[[[0,4]]]})"),
              HasSubstr("steps[0][0][1]"));
  EXPECT_THAT(error(head + R"("num_experts":4,"top_k":2,"steps":[[[0]]]})"),
              HasSubstr("needs 2 experts"));
  EXPECT_THAT(error(head + R"("num_experts":4,"top_k":2,"steps":[[[0,1],[0,1]]]})"),
              HasSubstr("an array for each of 1 layers"));
}

}  // namespace
}  // namespace moracle::trace_test
