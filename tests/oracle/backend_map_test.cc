// Tests the values of --backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/text.h"
#include "moracle/oracle.h"
#include "oracle/backend.h"

namespace moracle::backend_map_test {
namespace {

using ::testing::HasSubstr;

TEST(BackendMap, SingleNameAppliesToEveryLayer) {
  for (const char* name : {"auto", "cpu", "reference", "cuda-sm90"}) {
    const auto map = BackendMap::parse(name);
    ASSERT_TRUE(map) << name;
    EXPECT_EQ(map->for_name("model.layers.0.mlp.experts"), name);
    EXPECT_EQ(map->for_name(""), name);
  }
  EXPECT_EQ(BackendMap().for_name("any"), "auto");
}

TEST(BackendMap, FirstMatchingPatternDecides) {
  const auto map =
      BackendMap::parse("model.layers.1.*=reference,model.layers.*.mlp.experts=cpu,lm_head*=auto");
  ASSERT_TRUE(map);
  EXPECT_EQ(map->for_name("model.layers.1.mlp.experts"), "reference");
  EXPECT_EQ(map->for_name("model.layers.10.mlp.experts"), "cpu");
  EXPECT_EQ(map->for_name("model.layers.10.mlp.experts.0"), "auto");
  EXPECT_EQ(map->for_name("lm_head"), "auto");
  EXPECT_EQ(map->for_name("xmodel.layers.1.mlp"), "auto");
}

TEST(BackendMap, StarIsTheOnlyWildcard) {
  const struct {
    const char* pattern;
    const char* text;
    bool matches;
  } cases[] = {{"a*c", "abc", true},     {"a*c", "ac", true},  {"a*c", "abcd", false},
               {"*", "", true},          {"a", "", false},     {"a*b*c", "axbxbxc", true},
               {"a.c", "abc", false},    {"*x", "aax", true},  {"*x*", "aaxa", true},
               {"a**c", "abc", true},    {"*ab", "aab", true}, {"*.1.*", "l.11.e", false},
               {"l.?.e", "l.1.e", false}};
  for (const auto& c : cases) {
    const auto map = BackendMap::parse(std::string(c.pattern) + "=reference");
    ASSERT_TRUE(map);
    EXPECT_EQ(map->for_name(c.text) == "reference", c.matches) << c.pattern << " on " << c.text;
  }
}

TEST(BackendMap, RejectsUnknownRowNames) {
  for (const char* text : {"", "nosuch", "CPU", "a=nosuch", "a=cpu,b=", "a=cpu,b=reference2"}) {
    const auto map = BackendMap::parse(text);
    ASSERT_FALSE(map) << text;
    EXPECT_EQ(map.error().kind, ErrorKind::kInvalidArgument);
    for (const Backend& row : backends())
      EXPECT_THAT(map.error().need, HasSubstr(std::string(row.name)));
  }
  for (const char* text : {"=cpu", "a=cpu,", "a=cpu,,b=cpu", "a=cpu,b"}) {
    const auto map = BackendMap::parse(text);
    ASSERT_FALSE(map) << text;
    EXPECT_THAT(map.error().need, HasSubstr("pattern=name"));
  }
}

const ModuleNames kQkv{"model.layers.0.self_attn.q_proj",
                       {"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj",
                        "model.layers.0.self_attn.v_proj"}};
const ModuleNames kExperts{
    "model.layers.0.mlp.experts",
    {"model.layers.0.mlp.experts.0.gate_proj", "model.layers.0.mlp.experts.0.up_proj",
     "model.layers.0.mlp.experts.1.gate_proj", "model.layers.0.mlp.experts.1.up_proj",
     "model.layers.0.mlp.experts.0.down_proj", "model.layers.0.mlp.experts.1.down_proj"}};

TEST(BackendMap, MatchesStackByNamesOfAllItsModules) {
  const struct {
    const char* text;
    const ModuleNames* module;
  } cases[] = {{"model.layers.0.self_attn.*=cpu", &kQkv},
               {"*.q_proj=cpu,*.k_proj=cpu,*.v_proj=cpu", &kQkv},
               {"*.q_proj=cpu,*=cpu", &kQkv},
               {"model.layers.0.mlp.experts=cpu", &kExperts},
               {"*.mlp.experts=cpu", &kExperts},
               {"*.experts.*=cpu", &kExperts},
               {"*.gate_proj=cpu,*.up_proj=cpu,*.down_proj=cpu", &kExperts}};
  for (const auto& c : cases) {
    const auto backend = BackendMap::parse(c.text)->for_module(*c.module);
    ASSERT_TRUE(backend) << c.text;
    EXPECT_EQ(*backend, "cpu") << c.text;
  }
}

TEST(BackendMap, NamesModulesThatMustAgree) {
  const auto qkv = BackendMap::parse("*.q_proj=reference")->for_module(kQkv);
  ASSERT_FALSE(qkv);
  EXPECT_EQ(qkv.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(qkv.error().place, "backend");
  for (const std::string& member : kQkv.members)
    EXPECT_THAT(qkv.error().need, HasSubstr("'" + member + "'"));
  EXPECT_THAT(qkv.error().fact, HasSubstr("q_proj' would be reference and "));
  EXPECT_THAT(qkv.error().fact, HasSubstr("k_proj' auto"));
  const auto experts = BackendMap::parse("*.up_proj=reference")->for_module(kExperts);
  ASSERT_FALSE(experts);
  EXPECT_THAT(experts.error().need, HasSubstr("all of 'model.layers.0.mlp.experts'"));
  EXPECT_THAT(experts.error().fact, HasSubstr("0.up_proj' reference"));
}

// A misspelt pattern would silently leave its modules to auto.
TEST(BackendMap, NamesPatternWithoutMatch) {
  const std::vector<ModuleNames> modules = {kQkv, kExperts, {"lm_head", {}}};
  for (const char* text : {"auto", "*.0.*=cpu,*=auto", "lm_head=cpu", "*.v_proj=cpu",
                           "*.experts=cpu", "*.experts.1.down_proj=cpu"})
    EXPECT_TRUE(BackendMap::parse(text)->check_used(modules)) << text;
  for (const char* pattern : {"*.2.*", "*.q_proj.weight", "experts", "lm_head.weight"}) {
    const Status status =
        BackendMap::parse(str("*.0.*=cpu,", pattern, "=cpu"))->check_used(modules);
    ASSERT_FALSE(status) << pattern;
    EXPECT_THAT(status.error().fact, HasSubstr(str("'", pattern, "' matches no module")));
    EXPECT_THAT(status.error().need, HasSubstr(modules[0].name));
  }
}

}  // namespace
}  // namespace moracle::backend_map_test
