// The checkpoints that a test may read: those of the repository, and full ones next to the clone.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace moracle::testing {

/// The folders of all checkpoints that hold a file of this name, sorted.
inline std::vector<std::string> checkpoints_with(const char* file) {
  std::vector<std::string> found;
  for (const char* root : {MORACLE_MODELS_DIR, MORACLE_CHECKPOINTS_DIR}) {
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(root, none)) {
      if (std::filesystem::exists(entry.path() / file)) found.push_back(entry.path().string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace moracle::testing
