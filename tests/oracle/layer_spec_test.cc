// Tests that specs which describe no layer are refused before anything divides by their sizes, and
// that no size within the bounds overflows a plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "oracle/fake_rows.h"

namespace moracle::layer_spec_test {
namespace {

using ::testing::HasSubstr;

struct Broken {
  const char* field;
  std::function<void(LayerSpec&)> change;
  const char* need;
  const char* fact;
};

std::vector<Broken> broken_specs() {
  std::vector<Broken> all = {
      {"top_k", [](LayerSpec& l) { l.top_k = l.num_experts + 1; }, "1 to 16 (num_experts)",
       "it is 17"},
      {"num_experts",
       [](LayerSpec& l) { l.num_experts = l.hidden_size = l.intermediate_size = kMaxLayerSize; },
       "at most 4096 of 1048576 x 1048576, because 64 bits count the bytes", "it is 1048576"},
      {"limit", [](LayerSpec& l) { l.activation.limit = std::numeric_limits<float>::quiet_NaN(); },
       "a finite number of at least 0", "it is nan"},
      {"limit", [](LayerSpec& l) { l.activation.limit = -1; }, "a finite number of at least 0",
       "it is -1"},
      {"limit", [](LayerSpec& l) { l.activation.function = Activation::kSwigluOai; },
       "a finite number above 0", "it is 0"},
      {"limit", [](LayerSpec& l) { l.activation.function = Activation::kSwigluStep; },
       "a finite number above 0", "it is 0"},
      {"alpha", [](LayerSpec& l) { l.activation.alpha = std::numeric_limits<float>::infinity(); },
       "a finite number", "it is inf"},
      {"beta", [](LayerSpec& l) { l.activation.beta = std::numeric_limits<float>::quiet_NaN(); },
       "a finite number", "it is nan"},
      {"scheme", [](LayerSpec& l) { l.scheme.weight = int4_static_group(0); },
       "groups of at least 1 row", "they are 1 x 0"},
      {"scheme", [](LayerSpec& l) { l.scheme.weight = fp8_static_block(-128, 128); },
       "groups of at least 1 row", "they are -128 x 128"},
      {"scheme",
       [](LayerSpec& l) {
         l.scheme = {kFp8StaticChannelSym, fp8_dynamic_group(0)};
       },
       "groups of at least 1 row", "they are 1 x 0"},
      {"scheme",
       [](LayerSpec& l) {
         l.scheme.weight = kFp8StaticChannelSym;
         l.scheme.weight.minimums = true;
       },
       "minimums only beside int4 or int8 codes with scales for each row that are no powers of two",
       "they are beside fp8 weights per channel with minimums"},
      {"stored", [](LayerSpec& l) { l.stored = {{.n = 256, .k = 256}}; },
       "the matrices of the layer", "they are [256, 256]"},
      {"stored",
       [](LayerSpec& l) {
         l.stored = l.matrices();
         l.stored[1].k = 0;
       },
       "the matrices of the layer", "[256, 0]"},
      {"scheme",
       [](LayerSpec& l) {
         l.stored = l.matrices();
         l.stored[1].key = int4_static_group(0);
       },
       "groups of at least 1 row", "they are 1 x 0"},
  };
  using Field = int64_t LayerSpec::*;
  static constexpr std::pair<const char*, Field> kSizes[] = {
      {"num_experts", &LayerSpec::num_experts},
      {"hidden_size", &LayerSpec::hidden_size},
      {"intermediate_size", &LayerSpec::intermediate_size},
      {"top_k", &LayerSpec::top_k}};
  for (const auto& [name, field] : kSizes) {
    for (const int64_t size : {int64_t{0}, int64_t{-1}, int64_t{-256}, INT64_MIN, INT64_MAX,
                               kMaxLayerSize + 1, int64_t{1} << 40}) {
      all.push_back(
          {name, [field = field, size](LayerSpec& l) { l.*field = size; }, "1 to ", "it is "});
    }
  }
  return all;
}

LayerSpec sound() {
  return fake::layer(int4_static_group(128));
}

TEST(LayerSpecs, BrokenFieldIsNamedWithNeedAndFact) {
  ASSERT_TRUE(check(sound()));
  for (const Broken& broken : broken_specs()) {
    LayerSpec layer = sound();
    broken.change(layer);
    const Status status = check(layer);
    ASSERT_FALSE(status) << broken.field << ": " << broken.need;
    EXPECT_EQ(status.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_EQ(status.error().place, broken.field);
    EXPECT_THAT(status.error().need, HasSubstr(broken.need));
    EXPECT_THAT(status.error().fact, HasSubstr(broken.fact));
  }
}

TEST(LayerSpecs, SelectRefusesABrokenSpecOnEveryRow) {
  for (const Broken& broken : broken_specs()) {
    for (const char* machine : {"xeon-amx", "h200", "arc-b580"}) {
      for (const char* backend : {"auto", "reference"}) {
        Request request{.layer = sound(), .backend = backend};
        broken.change(request.layer);
        const Selection selection = select(request, *Machine::find(machine));
        EXPECT_FALSE(selection.plan) << broken.field;
        for (const Verdict& verdict : selection.considered) {
          ASSERT_EQ(verdict.reasons.size(), 1u) << verdict.backend->name;
          EXPECT_EQ(verdict.reasons[0].rule, "layer-spec");
          EXPECT_THAT(verdict.reasons[0].need, HasSubstr(std::string(broken.field) + ": "));
          EXPECT_THAT(verdict.reasons[0].have, HasSubstr(broken.fact));
        }
        const auto chosen = selection.chosen();
        ASSERT_FALSE(chosen);
        EXPECT_EQ(chosen.error().kind, ErrorKind::kInvalidArgument);
        EXPECT_EQ(chosen.error().place, std::string("layers.0.experts: ") + broken.field);
        EXPECT_THAT(explain(selection), HasSubstr(broken.need));
      }
    }
  }
}

TEST(LayerSpecs, BrokenLinearLayerIsRefused) {
  for (const int64_t size : {int64_t{0}, int64_t{-1}, INT64_MAX}) {
    LayerSpec layer{.name = "lm_head", .linear = true, .hidden_size = 64};
    layer.intermediate_size = size;
    EXPECT_FALSE(select({.layer = layer}, *Machine::find("xeon-amx")).chosen()) << size;
  }
}

// Sums and products of sizes within the bounds fit into 64 bits: an overflow would show as negative
// bytes, or as a plan that no machine could hold.
TEST(LayerSpecs, LargestSizesNeitherOverflowNorFit) {
  constexpr int64_t kMost = kMaxLayerSize;
  struct Largest {
    const char* machine;
    std::array<int64_t, 3> sizes;
    Scheme scheme;
  };
  const Largest cases[] = {
      {"xeon-amx", {4096, kMost, kMost}, {kF32Weight, {}}},
      {"xeon-amx", {4096, kMost, kMost}, {int4_static_group(1), {}}},
      {"xeon-amx", {4096, kMost, kMost}, {kInt8StaticChannelSym, kInt8DynamicTokenSym}},
      {"xeon-amx", {kMost, 4096, kMost}, {kF32Weight, {}}},
      {"h200", {4096, kMost, kMost}, {kMxfp8Static, kMxfp8Dynamic}},
      {"arc-b580", {4096, kMost, kMost}, {int4_static_group(32), {}}}};
  for (const auto& [machine, sizes, scheme] : cases) {
    SCOPED_TRACE(std::string(machine) + " " + name(scheme));
    Request request{.layer = fake::layer(scheme)};
    request.layer.num_experts = sizes[0];
    request.layer.hidden_size = sizes[1];
    request.layer.intermediate_size = sizes[2];
    ASSERT_TRUE(check(request.layer));
    const Selection selection = select(request, *Machine::find(machine));
    EXPECT_FALSE(selection.plan);
    const std::vector<Reason>& reasons = fake::verdict(selection, "reference")->reasons;
    const auto memory = std::find_if(reasons.begin(), reasons.end(),
                                     [](const Reason& r) { return r.rule == "memory"; });
    ASSERT_NE(memory, reasons.end());
    EXPECT_GT(std::stoll(memory->need), 1'000'000'000) << memory->need;  // in MB
    for (const Verdict& verdict : selection.considered) {
      for (const Reason& reason : verdict.reasons)
        EXPECT_NE(reason.need[0], '-') << verdict.backend->name << ": " << reason.need;
    }
  }
}

TEST(LayerSpecs, LargestRequestsOfSmallLayersNeitherOverflowNorFit) {
  for (const char* machine : {"xeon-amx", "h200"}) {
    Request request{.layer = sound()};
    request.max_num_tokens = std::numeric_limits<int32_t>::max() / request.layer.top_k;
    request.layer.hidden_size = kMaxLayerSize;
    EXPECT_FALSE(select(request, *Machine::find(machine)).plan) << "tokens";
    request.max_num_tokens = 1;
    for (const auto& [rank, adapters] : {std::pair{kMaxLayerSize, kMaxLayerSize},
                                         {INT64_MAX, int64_t{1}},
                                         {int64_t{1}, INT64_MAX},
                                         {int64_t{-1}, int64_t{1}},
                                         {int64_t{8}, int64_t{-1}},
                                         {int64_t{8}, int64_t{0}}}) {
      request.lora_rank = rank;
      request.max_adapters = adapters;
      EXPECT_FALSE(select(request, *Machine::find(machine)).plan) << rank << ", " << adapters;
    }
  }
}

TEST(ExpertMaps, RefuseMoreExpertsThanALayerHas) {
  for (const int64_t experts : {kMaxLayerSize + 1, INT64_MAX}) {
    const auto map = ExpertMap::place(experts, 2, 0);
    ASSERT_FALSE(map);
    EXPECT_THAT(map.error().to_string(), HasSubstr("1 to 1048576 experts"));
  }
  EXPECT_TRUE(ExpertMap::place(kMaxLayerSize, 2, 0));
}

}  // namespace
}  // namespace moracle::layer_spec_test
