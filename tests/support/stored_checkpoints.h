// Lists the checkpoints that a test may read: those of the repository, and full ones next to the
// clone.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "paths.h"

namespace moracle::testing {

/// The folders of all checkpoints that hold a file of this name, sorted.
inline std::vector<std::string> checkpoints_with(const char* file) {
  std::vector<std::string> found;
  for (const std::string& root : {testing::models_dir(), testing::checkpoints_dir()}) {
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(root, none)) {
      if (std::filesystem::exists(entry.path() / file)) found.push_back(entry.path().string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace moracle::testing
