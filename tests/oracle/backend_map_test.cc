// What a user may type for --backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "moracle/oracle.h"

namespace moracle {
namespace {

using ::testing::HasSubstr;

TEST(BackendMap, OfOneNameHoldsForEveryLayer) {
  for (const char* name : {"auto", "cpu", "reference", "cuda-sm90"}) {
    const auto map = BackendMap::parse(name);
    ASSERT_TRUE(map) << name;
    EXPECT_EQ(map->for_layer("model.layers.0.mlp.experts"), name);
    EXPECT_EQ(map->for_layer(""), name);
  }
  EXPECT_EQ(BackendMap().for_layer("any"), "auto");
}

TEST(BackendMap, LetsTheFirstPatternThatMatchesDecide) {
  const auto map =
      BackendMap::parse("model.layers.1.*=reference,model.layers.*.mlp.experts=cpu,lm_head*=auto");
  ASSERT_TRUE(map);
  EXPECT_EQ(map->for_layer("model.layers.1.mlp.experts"), "reference");
  EXPECT_EQ(map->for_layer("model.layers.10.mlp.experts"), "cpu");
  EXPECT_EQ(map->for_layer("model.layers.10.mlp.experts.0"), "auto");
  EXPECT_EQ(map->for_layer("lm_head.weight"), "auto");
  EXPECT_EQ(map->for_layer("xmodel.layers.1.mlp"), "auto");
}

TEST(BackendMap, MatchesStarsAgainstAnyTextAndNothingElseSpecially) {
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
    EXPECT_EQ(map->for_layer(c.text) == "reference", c.matches) << c.pattern << " on " << c.text;
  }
}

TEST(BackendMap, RefusesNamesThatNoRowHas) {
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

// A misspelt pattern would silently leave its layers to auto.
TEST(BackendMap, NamesAPatternThatMatchesNoLayer) {
  const std::vector<std::string> layers = {"model.layers.0.mlp.experts",
                                           "model.layers.1.mlp.experts"};
  EXPECT_TRUE(BackendMap::parse("auto")->check_used(layers));
  EXPECT_TRUE(BackendMap::parse("*.0.*=cpu,*=auto")->check_used(layers));
  const Status status = BackendMap::parse("*.0.*=cpu,*.2.*=cpu")->check_used(layers);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().fact, HasSubstr("'*.2.*' matches none"));
  EXPECT_THAT(status.error().need, HasSubstr(layers[0]));
}

}  // namespace
}  // namespace moracle
