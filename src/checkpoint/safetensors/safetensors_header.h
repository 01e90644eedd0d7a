// Parses the JSON header of a safetensors file, before sizes and offsets are checked.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/base.h"

namespace moracle {

/// The byte range [begin, end) of a tensor, counted from the first byte of the data.
struct SafetensorsExtent {
  uint64_t begin = 0;
  uint64_t end = 0;
  const std::string* name = nullptr;  ///< a key of SafetensorsHeader::tensors
  TensorView* view = nullptr;         ///< the value of that key
};

struct SafetensorsHeader {
  std::map<std::string, TensorView> tensors;  ///< without data
  std::vector<SafetensorsExtent> extents;     ///< one per tensor, in header order
};

/// Maximum number of dimensions of a tensor. Published checkpoints have at most 4.
inline constexpr size_t kMaxSafetensorsRank = 8;

/// Parses the header's text, which starts at byte 8 of `file`. On success every tensor has a dtype,
/// a shape of non-negative sizes and an extent. These are not checked against each other. Errors:
/// kBadFile; kUnsupported for a dtype that is not in DType.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, const std::string& file);

}  // namespace moracle
