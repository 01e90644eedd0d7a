// Each rule refuses what it is for and nothing else.
#include "oracle/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "oracle/fake_rows.h"

namespace moracle {
namespace {

using ::testing::HasSubstr;

struct Situation {
  Backend backend = fake::table().back();
  Request request{.layer = fake::layer(Scheme{int4_static_group(128), {}})};
  Machine machine = *Machine::find("x86-64");
};

/// Rules that object, by name.
std::set<std::string> objections(const Situation& s) {
  std::set<std::string> names;
  for (const Rule& rule : rules()) {
    if (rule.refuse(s.backend, s.request, s.machine)) names.insert(std::string(rule.name));
  }
  return names;
}

/// One change to a situation that everything accepts, the rule that must object, and what it says.
struct Trigger {
  const char* rule;
  const char* what;
  std::function<void(Situation&)> change;
  const char* need;
  const char* have;
};

std::vector<Trigger> triggers() {
  return {
      {"requested", "another name", [](Situation& s) { s.request.backend = "cpu"; },
       "'cpu', asked for by name", "'fake-all'"},
      {"platform", "another kind of device",
       [](Situation& s) { s.request.platform = Platform::kOpenCl; }, "opencl", "it runs on cpu"},
      {"build", "no maker", [](Situation& s) { s.backend.make = nullptr; }, "a build with",
       "without it"},
      {"device", "a CUDA row on a machine without GPUs",
       [](Situation& s) { s.backend.platform = Platform::kCuda; }, "cuda", "this machine has none"},
      {"device", "a CUDA row beside an OpenCL device",
       [](Situation& s) {
         s.backend.platform = Platform::kCuda;
         s.machine = *Machine::find("mi300x");
       },
       "cuda", "this machine has none"},
      {"isa", "AMX on a CPU without it",
       [](Situation& s) {
         s.backend.isa = Isa::kAmxInt8 | Isa::kAvx512;
         s.machine = *Machine::find("xeon-avx512");
       },
       "amx_int8", "this CPU has avx2 avx512 avx512_vnni"},
      {"isa", "AVX2 on a CPU that has nothing",
       [](Situation& s) {
         s.backend.isa = Isa::kAvx2;
         s.machine = *Machine::find("x86-64");
       },
       "avx2", "this CPU has none"},
      {"weights", "a format that it does not read",
       [](Situation& s) {
         s.backend.weights = fake::kInt8;
         s.request.layer.scheme = {int4_static_group(128), {}};
       },
       "weights in i8", "the layer's are i4"},
      {"weights", "an fp8 that no row reads",
       [](Situation& s) {
         s.request.layer.scheme.weight = {DType::kF8E5M2, kPerRow};
       },
       "bf16 or f16 or f32 or i8 or i4", "f8_e5m2"},
      {"activations", "int8 activations for a weight-only row",
       [](Situation& s) {
         s.backend.activations = {};
         s.request.layer.scheme = {kInt8StaticChannelSym, kInt8DynamicTokenSym};
       },
       "activations in floating point", "quantizes them to i8"},
      {"activations", "fp8 activations for an int8 row",
       [](Situation& s) {
         s.backend.activations = fake::kInt8;
         s.request.layer.scheme = {kInt8StaticChannelSym, QuantKey{DType::kF8E4M3, kPerRow, true}};
       },
       "floating point or i8", "f8_e4m3"},
      {"activation-scales", "one scale for a whole batch",
       [](Situation& s) {
         QuantKey by_batch = kInt8DynamicTokenSym;
         by_batch.group = GroupShape{};
         s.request.layer.scheme = {kInt8StaticChannelSym, by_batch};
       },
       "int8 per token", "the scheme is int8 weights"},
      {"zero-points", "zero points for a symmetric row",
       [](Situation& s) {
         s.backend.zero_points = false;
         s.request.layer.scheme.weight.symmetric = false;
       },
       "symmetric weights", "zero points"},
      {"act-order", "act-order for a row that wants neighbours",
       [](Situation& s) {
         s.backend.group_index = false;
         s.request.layer.group_index = true;
       },
       "neighbouring columns", "desc_act"},
      {"bias", "biases for a row that adds none",
       [](Situation& s) {
         s.backend.bias = false;
         s.request.layer.bias = true;
       },
       "without biases", "has biases"},
      {"group-size", "groups that its loop cannot cut",
       [](Situation& s) {
         s.backend.group_multiple = 48;
         s.request.layer.scheme = {int4_static_group(128), {}};
       },
       "a multiple of 48", "groups of 128"},
      {"sum-length", "more exact products than its integers hold",
       [](Situation& s) {
         s.backend.max_integer_k = 255;
         s.request.layer.scheme = {kInt8StaticChannelSym, kInt8DynamicTokenSym};
       },
       "at most 255 columns", "the layer has 256"},
  };
}

TEST(Rules, AcceptTheRowThatTakesEverything) {
  EXPECT_EQ(objections({}), std::set<std::string>{});
}

TEST(Rules, ObjectAloneToTheOneThingThatIsWrong) {
  for (const Trigger& trigger : triggers()) {
    SCOPED_TRACE(trigger.what);
    Situation situation;
    trigger.change(situation);
    EXPECT_EQ(objections(situation), std::set<std::string>{trigger.rule});
    const Backend row[] = {situation.backend};
    const Selection selection = select(situation.request, situation.machine, row);
    ASSERT_EQ(selection.considered[0].reasons.size(), 1u);
    const Reason& reason = selection.considered[0].reasons[0];
    EXPECT_EQ(reason.rule, trigger.rule);
    EXPECT_THAT(reason.need, HasSubstr(trigger.need));
    EXPECT_THAT(reason.have, HasSubstr(trigger.have));
    EXPECT_FALSE(selection.plan);
  }
}

TEST(Rules, HaveEachACaseHereThatTriggersThem) {
  std::set<std::string> triggered, named;
  for (const Trigger& trigger : triggers()) triggered.insert(trigger.rule);
  for (const Rule& rule : rules())
    EXPECT_TRUE(named.insert(std::string(rule.name)).second) << rule.name;
  EXPECT_EQ(triggered, named);
}

TEST(Rules, ObjectTogetherToWhatIsWrongTogether) {
  for (const Trigger& one : triggers()) {
    for (const Trigger& other : triggers()) {
      Situation situation;
      one.change(situation);
      other.change(situation);
      const std::set<std::string> found = objections(situation);
      // The later change may undo the earlier one, never the other way round.
      EXPECT_TRUE(found.contains(other.rule)) << one.what << ", " << other.what;
    }
  }
}

// D5: what a CPU lacks is named bit by bit, and the rest is left out.
TEST(Rules, NameOnlyTheFeaturesThatAreMissing) {
  Situation situation;
  situation.backend.isa = Isa::kAvx2 | Isa::kAvx512 | Isa::kAvx512Bf16 | Isa::kAmxBf16;
  const Backend row[] = {situation.backend};
  const struct {
    const char* machine;
    const char* need;
  } expected[] = {{"x86-64", "avx2 avx512 avx512_bf16 amx_bf16"},
                  {"desktop-avx2", "avx512 avx512_bf16 amx_bf16"},
                  {"xeon-avx512", "avx512_bf16 amx_bf16"},
                  {"epyc-zen4", "amx_bf16"}};
  for (const auto& [machine, need] : expected) {
    const Selection s = select(situation.request, *Machine::find(machine), row);
    ASSERT_EQ(s.considered[0].reasons.size(), 1u) << machine;
    EXPECT_EQ(s.considered[0].reasons[0].need, need);
  }
  EXPECT_TRUE(select(situation.request, *Machine::find("xeon-amx"), row).plan);
}

TEST(Rules, LetGroupSizesPassThatDivideAndChannelsAlways) {
  Situation situation;
  situation.backend.group_multiple = 32;
  for (int64_t size : {int64_t{32}, int64_t{64}, int64_t{128}, GroupShape::kAll}) {
    situation.request.layer.scheme.weight = int4_static_group(size);
    EXPECT_TRUE(objections(situation).empty()) << size;
  }
  for (int64_t size : {1, 16, 33, 48}) {
    situation.request.layer.scheme.weight = int4_static_group(size);
    EXPECT_EQ(objections(situation), std::set<std::string>{"group-size"}) << size;
  }
  situation.request.layer.scheme.weight = kBF16Weight;
  EXPECT_TRUE(objections(situation).empty());
}

TEST(Rules, CountTheColumnsOfEveryMatrixForExactSums) {
  Situation situation;
  situation.request.layer.scheme = {kInt8StaticChannelSym, kInt8DynamicTokenSym};
  situation.request.layer.hidden_size = 100;
  situation.request.layer.intermediate_size = 300;
  for (auto [most, refused] : {std::pair{0, false}, {299, true}, {300, false}}) {
    situation.backend.max_integer_k = most;
    EXPECT_EQ(objections(situation).contains("sum-length"), refused) << most;
  }
  // w2 is not there in a dense linear layer, and without codes there are no integer sums.
  situation.backend.max_integer_k = 100;
  situation.request.layer.linear = true;
  EXPECT_TRUE(objections(situation).empty());
  situation.backend.max_integer_k = 1;
  situation.request.layer.scheme.activation.reset();
  EXPECT_TRUE(objections(situation).empty());
}

}  // namespace
}  // namespace moracle
