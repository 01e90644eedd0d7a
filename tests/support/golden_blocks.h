// Blocks of GGUF's block types with the values that PyPI's gguf computes (tests/golden/gguf).
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "moracle/base.h"
#include "paths.h"

namespace moracle::testing {

/// The golden file of a block type.
struct GoldenBlocks {
  DType type;
  int64_t count = 0;
  std::vector<std::byte> blocks;
  std::vector<float> values;

  explicit GoldenBlocks(DType of) : type(of) {
    std::ifstream file(golden_dir() + "/gguf/" + std::string(name(type)) + ".bin",
                       std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    const Block unit = block(type);
    const size_t each = static_cast<size_t>(unit.bytes) + unit.elements * sizeof(float);
    EXPECT_GT(bytes.size(), 0u) << name(type);
    EXPECT_EQ(bytes.size() % each, 0u) << name(type);
    count = static_cast<int64_t>(bytes.size() / each);
    blocks.resize(count * unit.bytes);
    values.resize(count * unit.elements);
    std::memcpy(blocks.data(), bytes.data(), blocks.size());
    std::memcpy(values.data(), bytes.data() + blocks.size(), values.size() * sizeof(float));
  }
};

}  // namespace moracle::testing
