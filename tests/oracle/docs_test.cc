// Tests that the table of rules in docs/oracle.md has every rule and no other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "oracle/rules/rules.h"
#include "paths.h"

namespace moracle::docs_test {
namespace {

/// First cells of the table that begins with this line, without their backquotes.
std::vector<std::string> first_cells(const std::string& path, const std::string& heading) {
  std::ifstream in(path);
  std::vector<std::string> cells;
  std::string line;
  while (std::getline(in, line) && !line.starts_with(heading)) {
  }
  std::getline(in, line);  // | --- |
  while (std::getline(in, line) && line.starts_with("| `")) {
    cells.push_back(line.substr(3, line.find('`', 3) - 3));
  }
  return cells;
}

TEST(Rules, AreDocumentedInTableOrder) {
  std::vector<std::string> names;
  for (const Rule& rule : rules()) names.emplace_back(rule.name);
  EXPECT_THAT(first_cells(testing::docs_dir() + "/oracle.md", "| rule | objects when |"),
              ::testing::ElementsAreArray(names))
      << "the table of rules in docs/oracle.md";
}

}  // namespace
}  // namespace moracle::docs_test
