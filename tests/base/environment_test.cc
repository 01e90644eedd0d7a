// The library must not act like the command: it reads no environment variable, because the plan
// shows everything that changes what runs, and its errors name fields, which the command maps to
// options.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>

#include "paths.h"

namespace moracle::environment_test {
namespace {

// Calls visit(path, text) for every file below `folder` of the tree, except those of the command.
// Returns the number of files.
template <class Visit>
int visit_sources(const char* folder, const Visit& visit) {
  const auto source = std::filesystem::path(testing::golden_dir()) / ".." / ".." / folder;
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source)) {
    const std::string path = std::filesystem::relative(entry.path(), source).string();
    if (!entry.is_regular_file() || path.starts_with("cli/")) continue;
    ++files;
    std::ifstream file(entry.path(), std::ios::binary);
    visit(path, std::string{std::istreambuf_iterator<char>(file), {}});
  }
  return files;
}

TEST(Library, ReadsNoEnvironment) {
  const std::regex asks("getenv|\\benviron\\b");  // secure_getenv, too
  EXPECT_TRUE(std::regex_search("char** all = environ;", asks));
  const int files = visit_sources("src", [&](const std::string& path, const std::string& text) {
    EXPECT_FALSE(std::regex_search(text, asks)) << path;
  });
  EXPECT_GT(files, 100);
}

// The first string literal of the text that holds an option of the command, such as "--device";
// empty if there is none. A whole command line ("moracle check --backend ") does not count.
std::string option_in(const std::string& text, const std::regex& option) {
  const std::regex literal(R"re("(?:[^"\\]|\\.)*")re");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t dashes = line.rfind("--");
    if (dashes == line.npos || line.find('"') > dashes) continue;  // most lines
    if (line.compare(line.find_first_not_of(' '), 2, "//") == 0) continue;
    for (std::sregex_iterator it(line.begin(), line.end(), literal), end; it != end; ++it) {
      const std::string found = it->str();
      if (std::regex_search(found, option) && found.find("moracle ") == found.npos) return found;
    }
  }
  return "";
}

TEST(Library, MessagesNameNoCommandOptions) {
  const std::regex anywhere("[^a-z-]--[a-z]"), at_the_start("^\"--[a-z]");
  EXPECT_EQ(option_in("Error{kind, \"\", \"--device\", need}", anywhere), "\"--device\"");
  EXPECT_EQ(option_in("str(\" s (--timeout)\")", anywhere), "\" s (--timeout)\"");
  EXPECT_EQ(option_in("str(\" s (--timeout)\")", at_the_start), "");
  EXPECT_EQ(option_in("str(\"--host\")", at_the_start), "\"--host\"");
  EXPECT_EQ(option_in("str(\"a\", --count, \"b--c\")", anywhere), "");
  EXPECT_EQ(option_in("  // \"--device\"", anywhere), "");
  EXPECT_EQ(option_in("str(\"moracle check --backend \", name)", anywhere), "");
  const auto refuse = [&](const std::string& path, const std::string& text) {
    // The server belongs to the command: its needs and facts may name an option, but its places are
    // fields. Conformance writes a command line in several literals.
    const bool of_command = path.starts_with("serve/") || path.starts_with("conformance/");
    EXPECT_EQ(option_in(text, of_command ? at_the_start : anywhere), "") << path;
  };
  EXPECT_GT(visit_sources("src", refuse), 100);
  EXPECT_GT(visit_sources("python/src", refuse), 10);
  EXPECT_GT(visit_sources("python/moracle", refuse), 5);
}

}  // namespace
}  // namespace moracle::environment_test
