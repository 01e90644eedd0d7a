// The cuts of real checkpoints in this repository (tests/golden/README.md), and the optional full
// checkpoints next to the clone.
#pragma once

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "paths.h"

namespace moracle::testing {

struct Cut {
  std::string_view folder;
  std::string_view producer;
  std::string_view scheme;
};

/// All cuts, with the scheme of each.
inline constexpr Cut kCuts[] = {
    {"dsv3-fp8-block128", "fp8", "fp8-w8a8-block128x128"},
    {"gptoss-bf16", "plain", "bf16"},
    {"gptoss-mxfp4", "mxfp4", "mxfp4-w4a16"},
    {"qwen3moe-autoround-int4-g64-asym", "auto-round", "int4-w4a16-g64-asym"},
    {"qwen3moe-autoround-int4-int8-g128", "auto-round", "int4-w4a16-g128 + int8-w8a16-g128"},
    {"qwen3moe-awq-int4-g128", "awq", "int4-w4a16-g128-asym"},
    {"qwen3moe-bf16", "plain", "bf16"},
    {"qwen3moe-ct-fp8-block", "compressed-tensors", "fp8-w8a8-block128x128"},
    {"qwen3moe-ct-fp8-dynamic", "compressed-tensors", "fp8-w8a8-channel"},
    {"qwen3moe-ct-w4a16-g128", "compressed-tensors", "int4-w4a16-g128"},
    {"qwen3moe-ct-w8a8-int8", "compressed-tensors", "int8-w8a8"},
    {"qwen3moe-fp8-block128", "fp8", "fp8-w8a8-block128x128"},
    {"qwen3moe-gptq-int4-g128", "gptq", "int4-w4a16-g128"},
    {"qwen3moe-gptq-int4-g32-act", "gptq", "int4-w4a16-g32"},
    {"qwen3moe-gptq-int4-g64-asym", "gptq", "int4-w4a16-g64-asym"},
    {"qwen3moe-gptq-int8-g128", "gptq", "int8-w8a16-g128"},
    {"qwen3moe-gptqv2-int4-g128", "gptq", "int4-w4a16-g128"},
    {"qwen3moe-modelopt-mxfp8", "modelopt", "mxfp8-w8a8"},
};

/// The subfolders of a folder, sorted. Empty if the folder does not exist.
inline std::vector<std::string> folders_in(const std::string& root) {
  std::vector<std::string> found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(root, none)) {
    if (entry.is_directory()) found.push_back(entry.path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

inline std::vector<std::string> golden_cuts() {
  return folders_in(testing::golden_dir() + "/layers");
}

inline std::string last_name(const std::string& folder) {
  return std::filesystem::path(folder).filename().string();
}

/// A name that gtest accepts.
inline std::string test_name(std::string text) {
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return text;
}

}  // namespace moracle::testing
