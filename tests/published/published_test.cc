// Compares every published config with its row in docs/models.md. The configs lie beside the clone;
// `./dev docs` writes the table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "models/families/family.h"
#include "paths.h"
#include "published/answers.h"
#include "published/module_forms.h"
#include "support/must.h"
#include "support/temporary_folder.h"

namespace moracle::published_test {
namespace {

using published::Answer;
using published::Support;

std::vector<std::string> configs() {
  return published::published_configs(testing::published_configs_dir());
}

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(text).str();
}

// The lines of the table's models.
std::vector<std::string> rows() {
  std::istringstream text(read(testing::docs_dir() + "/models.md"));
  std::vector<std::string> found;
  bool inside = false;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("<!-- ")) inside = line == "<!-- generated: published -->";
    if (inside && line.starts_with("| ") && line.find('/') < line.find(" |", 2))
      found.push_back(line + "\n");
  }
  return found;
}

// "MiniMaxM2ForCausalLM" in `"architectures": ["MiniMaxM2ForCausalLM"]`.
std::string architecture_of(const std::string& config) {
  const std::string text = read(config);
  const size_t key = text.find("\"architectures\""),
               begin = text.find('"', text.find('[', key)) + 1;
  return text.substr(begin, text.find('"', begin) - begin);
}

bool is_described(const std::string& architecture) {
  const auto all = families();
  return std::any_of(all.begin(), all.end(), [&](const Family* family) {
    return family->describe != nullptr && family->is(architecture);
  });
}

TEST(PublishedConfigs, TableHasRowForEachConfig) {
  if (configs().empty())
    GTEST_SKIP() << "needs " << testing::published_configs_dir() << ", which is not there";
  EXPECT_EQ(rows().size(), configs().size()) << "run ./dev docs";
}

class PublishedConfig : public ::testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PublishedConfig);

TEST_P(PublishedConfig, MatchesItsRowInTable) {
#if defined(MORACLE_SANITIZED)
  if (GetParam().find("gpt-oss") == std::string::npos &&
      GetParam().find("gemma") == std::string::npos)
    GTEST_SKIP() << "headers of 100,000 tensors take minutes under sanitizers";
#endif
  const testing::TemporaryFolder scratch;
  const Answer answer = testing::must(published::ask(GetParam(), scratch.path()));
  EXPECT_THAT(rows(), ::testing::Contains(published::table_row(answer))) << "run ./dev docs";
  if (answer.support == Support::kRuns) return;
  // A rejection names what this program lacks and does not call a published file broken.
  EXPECT_EQ(answer.kind, ErrorKind::kUnsupported) << answer.reason;
  const std::string architecture = architecture_of(GetParam());
  EXPECT_THAT(answer.reason, ::testing::HasSubstr(architecture));
  EXPECT_FALSE(is_described(architecture)) << answer.reason;
}

INSTANTIATE_TEST_SUITE_P(Published, PublishedConfig, ::testing::ValuesIn(configs()),
                         [](const auto& param) {
                           std::string name = std::filesystem::path(param.param).stem().string();
                           for (char& c : name)
                             c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace moracle::published_test
