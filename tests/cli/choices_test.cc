// Tests the choices that `run` prints before it answers: one line per group of equal layers.
#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "run_command.h"

namespace moracle::choices_test {
namespace {

using ::testing::HasSubstr;
using testing::Ran;
using testing::run_command;

std::vector<std::string> lines_with(const std::string& text, const std::string& part) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.find(part) != line.npos) lines.push_back(line);
  }
  return lines;
}

TEST(Choices, ShownOncePerGroupOfEqualLayers) {
  const std::string model = testing::small_model();
  if (model.empty()) GTEST_SKIP() << "the small model is not there";
  const Ran all = run_command({"run", model, "-p", "a", "-n", "1", "--backend", "cpu"});
  ASSERT_EQ(all.code, 0) << all.err;
  const std::vector<std::string> experts = lines_with(all.err, "experts");
  ASSERT_EQ(experts.size(), 1u) << all.err;
  for (const char* part : {"layers 0–2", "int4-w4a16-g128", "→ cpu"})
    EXPECT_THAT(experts[0], HasSubstr(part));
  EXPECT_EQ(lines_with(all.out, "→").size(), 0u) << "the answer alone goes to stdout";

  const Ran mapped = run_command({"run", model, "-p", "a", "-n", "1", "--backend",
                                  "model.layers.1.mlp.experts=reference,*.mlp.experts=cpu"});
  const std::vector<std::string> groups = lines_with(mapped.err, "experts");
  ASSERT_EQ(groups.size(), 2u) << mapped.err;
  EXPECT_THAT(groups[0], HasSubstr("→ cpu"));
  EXPECT_THAT(groups[1], HasSubstr("→ reference"));
}

// `run` lists other serving rows only if no row was requested by name.
TEST(Choices, NameOtherRowsThatServe) {
  const std::string model = testing::small_model();
  if (model.empty()) GTEST_SKIP() << "the small model is not there";
  const Ran ran = run_command({"run", model, "-p", "a", "-n", "1"});
  const std::vector<std::string> experts = lines_with(ran.err, "experts");
  ASSERT_EQ(experts.size(), 1u) << ran.err;
  EXPECT_THAT(experts[0], HasSubstr("reference)"));
}

}  // namespace
}  // namespace moracle::choices_test
