#include "checkpoint/producers/pattern.h"

#include <ctime>
#include <string>

#include "expect_error.h"
#include "support/must.h"

namespace moracle::pattern_test {
namespace {

using testing::expect_bad;

bool matches(const std::string& pattern, const std::string& module) {
  return testing::must(Pattern::make(pattern, "config.json")).matches(module);
}

TEST(Pattern, NameMatchesOnlyItself) {
  EXPECT_TRUE(matches("lm_head", "lm_head"));
  EXPECT_FALSE(matches("lm_head", "lm_head.0"));
  EXPECT_FALSE(matches("lm_head", "model.lm_head"));
  EXPECT_FALSE(matches("model.layers.0", "model.layers.0.mlp.gate"));
  EXPECT_FALSE(matches("model.layers.0.mlp.gate", "model.layers.0xmlp.gate"));
  EXPECT_FALSE(matches("", "lm_head"));
}

TEST(Pattern, ClassLinearMatchesEveryModule) {
  EXPECT_TRUE(matches("Linear", "lm_head"));
  EXPECT_TRUE(matches("Linear", "model.layers.0.mlp.experts.3.down_proj"));
}

TEST(Pattern, OtherClassIsTreatedAsName) {
  EXPECT_FALSE(matches("Conv1d", "lm_head"));
  EXPECT_FALSE(matches("linear", "lm_head"));
}

TEST(Pattern, RegularExpressionMatchesFromStart) {
  EXPECT_TRUE(matches("re:.*mlp\\.gate$", "model.layers.11.mlp.gate"));
  EXPECT_FALSE(matches("re:.*mlp\\.gate$", "model.layers.11.mlp.gate_proj"));
  EXPECT_TRUE(matches("re:model\\.layers\\.0\\.", "model.layers.0.mlp.gate"));
  EXPECT_FALSE(matches("re:mlp", "model.layers.0.mlp.gate"));
  EXPECT_TRUE(matches("re:lm_head|.*gate", "model.layers.0.mlp.gate"));
  EXPECT_TRUE(matches("re:", "anything"));
  EXPECT_TRUE(matches("re:(?!.*gate).*proj", "model.q_proj"));
  EXPECT_FALSE(matches("re:(?!.*gate).*proj", "model.gate_proj"));
}

TEST(Pattern, RegularExpressionHasSyntaxOfPython) {
  EXPECT_TRUE(matches("re:(?P<x>a)(?P=x)$", "aa"));
  EXPECT_TRUE(matches("re:a\\Z", "a"));
  EXPECT_FALSE(matches("re:a\\Z", "a\n"));
  EXPECT_TRUE(matches("re:a$", "a\n"));
  EXPECT_FALSE(matches("re:a$", "a\nb"));
  EXPECT_FALSE(matches("re:a.b", "a\nb"));
  EXPECT_TRUE(matches("re:(?s:a.b)", "a\nb"));
  EXPECT_TRUE(matches("re:a{,2}$", "aa"));
  EXPECT_FALSE(matches("re:a++ab", "aab"));
  EXPECT_TRUE(matches("re:[[]a", "[a"));
  EXPECT_FALSE(matches("re:[[:alpha:]]", "b"));
  EXPECT_TRUE(matches("re:\\d", "\u0663"));
  EXPECT_TRUE(matches("re:\\v", "\v"));
  EXPECT_FALSE(matches("re:\\v", "\n"));
}

TEST(Pattern, RejectsInvalidExpression) {
  const char* const cases[][2] = {{"re:(", "end pattern with unmatched parenthesis"},
                                  {"re:ab(", "end pattern with unmatched parenthesis"},
                                  {"re:[a", "premature end of char-class"},
                                  {"re:*", "target of repeat operator is not specified"},
                                  {"re:a{2,1}", "upper is smaller than lower in repeat range"},
                                  {"re:(?<n", "undefined group option"},
                                  {"re:\\", "end pattern at escape"}};
  for (const auto& [text, reason] : cases) {
    expect_bad(Pattern::make(text, "dir/config.json"),
               {"dir/config.json", std::string("module pattern '") + text + "'",
                "needs a regular expression", reason});
  }
}

TEST(Pattern, StopsSlowExpression) {
  EXPECT_FALSE(matches("re:(a+)+$", std::string(200, 'a') + "b"));
}

// A checkpoint has thousands of modules, and the library matches each several times.
TEST(Pattern, StopsSlowExpressionFastEnoughForManyModules) {
  const auto pattern = Pattern::make("re:(a+)+$", "config.json");
  ASSERT_TRUE(pattern.ok());
  // Measure CPU time, so that a busy machine does not matter. Oniguruma's own limit takes 100 times
  // as long.
  const std::clock_t start = std::clock();
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(pattern->matches(std::string(200, 'a') + "b"));
  EXPECT_LT(std::clock() - start, std::clock_t{10} * CLOCKS_PER_SEC);
}

TEST(Pattern, CopiesShareExpression) {
  auto made = Pattern::make("re:a+$", "config.json");
  ASSERT_TRUE(made.ok());
  const Pattern copy = *made;
  *made = *Pattern::make("b", "config.json");
  EXPECT_TRUE(copy.matches("aaa"));
  EXPECT_TRUE(made->matches("b"));
}

}  // namespace
}  // namespace moracle::pattern_test
