// D31: the plan shows everything that changes what runs. So the library reads no environment
// variable; only the command may.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#include "paths.h"

namespace moracle::environment_test {
namespace {

TEST(Library, ReadsNoEnvironment) {
  const auto source = std::filesystem::path(testing::golden_dir()) / ".." / ".." / "src";
  const std::regex asks("getenv|\\benviron\\b");  // secure_getenv, too
  EXPECT_TRUE(std::regex_search("char** all = environ;", asks));
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source)) {
    const std::string path = std::filesystem::relative(entry.path(), source).string();
    if (!entry.is_regular_file() || path.starts_with("cli/")) continue;
    ++files;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_FALSE(std::regex_search(text, asks)) << path;
  }
  EXPECT_GT(files, 100);
}

}  // namespace
}  // namespace moracle::environment_test
