// Tests `moracle support`: the oracle's verdict for each backend, scheme and variant.
#include <nlohmann/json.hpp>
#include <string>

#include "conformance/conformance.h"
#include "oracle/backend.h"
#include "run_command.h"

namespace moracle::support_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::expect_refused;
using ::testing::HasSubstr;
using testing::Ran;
using testing::run_command;

Json answer(std::vector<std::string> options) {
  options.insert(options.begin(), "support");
  options.push_back("--json");
  const Ran ran = run_command(options);
  EXPECT_EQ(ran.code, 0) << ran.err;
  return Json::parse(ran.out, nullptr, false);
}

TEST(SupportCommand, JsonHasEveryVariantOfASchemeForEveryBackend) {
  const Json all = answer({"--scheme", "int4-w4a16-g128"});
  ASSERT_TRUE(all.is_array());
  EXPECT_EQ(all.size(), backends().size() * conformance::variants().size());
  for (const Json& one : all) {
    if (one["backend"] == "reference") {
      EXPECT_TRUE(one["refused_by"].empty()) << one;
    }
  }
}

// On an ideal machine the row's columns decide, not this CPU.
TEST(SupportCommand, NamesRejectingRules) {
  const Json f32 = answer({"--backend", "cpu-amx", "--scheme", "f32", "--variant", "plain"});
  ASSERT_EQ(f32.size(), 1u);
  EXPECT_EQ(f32[0]["refused_by"], Json({"weights"}));
  const Ran text = run_command({"support", "--backend", "cpu-amx"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("cpu-amx"));
  EXPECT_THAT(text.out, HasSubstr("f16, f32\n"));
}

TEST(SupportCommand, RejectsUnknownNames) {
  expect_refused({"support", "--backend", "cpu-mmx"}, {"--backend", "one of", "'cpu-mmx'"});
  expect_refused({"support", "--scheme", "int3"}, {"--scheme", "one of", "'int3'"});
  expect_refused({"support", "--variant", "odd"}, {"--variant", "one of", "'odd'"});
}

}  // namespace
}  // namespace moracle::support_test
