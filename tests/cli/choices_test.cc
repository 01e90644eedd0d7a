// Tests the backend choices that `run` prints: one line per group of equal layers.
#include <algorithm>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/producers/fp4_synthetic.h"
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

// New users see texts of seed 0 first.
TEST(BundledModel, DefaultTextIsNotRepetitive) {
  const std::string model = testing::small_model();
  if (model.empty()) GTEST_SKIP() << "the small model is not there";
  for (const char* prompt : {"And the LORD spake", "Hello", "The king"}) {
    const Ran ran = run_command({"run", model, "-p", prompt, "-n", "32", "--backend", "reference"});
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_FALSE(std::regex_search(ran.out, std::regex("([a-z]{1,8})\\1\\1\\1"))) << ran.out;
  }
}

// A checkpoint with 4-bit activations runs with more bits, and `run` prints that.
TEST(Choices, ListUnusedActivationQuantization) {
  const testing::TemporaryFolder folder;
  ASSERT_TRUE(testing::fp4::checkpoint_of({"NVFP4"}).write(folder.path()).ok());
  folder.write("tokenizer.json", R"({"decoder": {"type": "ByteLevel"},
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})");
  const Ran ran = run_command({"run", folder.path(), "-p", "a", "-n", "1"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(lines_with(ran.err, "not used: 4-bit activations (quant_algo NVFP4").size(), 1u)
      << ran.err;
  EXPECT_EQ(lines_with(ran.out, "not used").size(), 0u) << "the answer alone goes to stdout";
}

}  // namespace
}  // namespace moracle::choices_test
