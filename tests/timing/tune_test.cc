// Tests the layer measurements of `moracle tune`, and that the oracle can use them.
#include "moracle/moe.h"

#include <gtest/gtest.h>

#include <map>

#include "bench/bench.h"
#include "oracle/backend.h"
#include "support/must.h"

namespace moracle::timing::tune_test {
namespace {

TuneOptions options() {
  TuneOptions options;
  options.tokens = {1, 8};
  options.seconds = 0.5;
  return options;
}

LayerSpec small_layer(const char* scheme) {
  return bench::layer_of(testing::must(bench::find_shape("8x64x32x2")),
                         testing::must(parse_scheme(scheme)));
}

TEST(Tune, MeasuresServingRowsAndOracleUsesTimes) {
  LayerSpec layer = small_layer("int4-w4a16-g32");
  layer.group_index = true;
  Machine machine = Machine::here();
  const Result<TunedLayer> tuned = tune(layer, machine, *open_device("cpu", 1), options());
  ASSERT_TRUE(tuned) << tuned.error().to_string();
  EXPECT_EQ(tuned->layer, describe(layer));
  std::map<std::string, std::map<int64_t, double>> times;
  for (const TunedTime& time : tuned->times) {
    EXPECT_GT(time.us, 0);
    times[time.backend][time.num_tokens] = time.us;
  }
  // Other rows may be too slow here, or the time is up.
  ASSERT_FALSE(tuned->times.empty());
  EXPECT_EQ(times[tuned->times.front().backend].size(), 2u);
  machine.tuned = {*tuned};
  Request request;
  request.layer = layer;
  request.platform = Platform::kCpu;
  const Selection selection = select(request, machine);
  ASSERT_TRUE(selection.plan);
  // No fully measured row is faster than the chosen row.
  const auto chosen = times.find(std::string(selection.plan->backend->name));
  ASSERT_NE(chosen, times.end());
  for (const auto& [backend, measured] : times) {
    if (measured.size() != 2) continue;
    EXPECT_GE(measured.at(1) * measured.at(8), chosen->second[1] * chosen->second[8]) << backend;
  }
}

// Holds on a busy machine, too.
TEST(Tune, TimesOnlyFirstRowWhenTimeIsUp) {
  TuneOptions none = options();
  none.seconds = 1e-9;
  const Machine here = Machine::here();
  const LayerSpec layer = small_layer("bf16");
  const auto tuned = tune(layer, here, *open_device("cpu", 1), none);
  ASSERT_TRUE(tuned) << tuned.error().to_string();
  const Selection selection = select({.layer = layer, .platform = Platform::kCpu}, here);
  ASSERT_TRUE(selection.plan);
  ASSERT_EQ(tuned->times.size(), none.tokens.size());
  for (size_t i = 0; i < none.tokens.size(); ++i) {
    EXPECT_EQ(tuned->times[i].backend, selection.plan->backend->name);
    EXPECT_EQ(tuned->times[i].num_tokens, none.tokens[i]);
  }
}

TEST(Tune, ReportsRowsThatDoNotFit) {
  TuneOptions little = options();
  little.most_bytes = 100;
  const auto tuned = tune(small_layer("bf16"), Machine::here(), *open_device("cpu", 1), little);
  ASSERT_FALSE(tuned);
  EXPECT_EQ(tuned.error().kind, ErrorKind::kOutOfMemory);
}

TEST(Tune, RejectsInvalidTokenCounts) {
  for (const std::vector<int64_t>& tokens :
       {std::vector<int64_t>{}, {0}, {4, -1}, {INT64_MIN, 4}}) {
    TuneOptions odd = options();
    odd.tokens = tokens;
    const auto tuned =
        tune(small_layer("bf16"), Machine::here(), testing::must(open_device("cpu", 1)), odd);
    ASSERT_FALSE(tuned);
    EXPECT_EQ(tuned.error().place, "tokens");
  }
}

TEST(Tune, RejectsInvalidLayers) {
  LayerSpec no_experts = small_layer("bf16"), linear = small_layer("bf16");
  no_experts.num_experts = 0;
  linear.linear = true;
  for (const auto& [layer, text] : {std::pair{no_experts, "num_experts: needs 1 to 1048576"},
                                    {linear, "needs a layer of experts; it is one linear layer"}}) {
    const auto tuned =
        tune(layer, Machine::here(), testing::must(open_device("cpu", 1)), options());
    ASSERT_FALSE(tuned);
    EXPECT_NE(tuned.error().to_string().find(text), std::string::npos) << tuned.error().to_string();
  }
}

}  // namespace
}  // namespace moracle::timing::tune_test
