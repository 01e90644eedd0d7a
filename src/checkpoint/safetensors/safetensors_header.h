// The JSON header of a safetensors file: what it says about each tensor, not yet whether the sizes
// and places are true.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/base.h"

namespace moracle {

/// Where the header puts a tensor, counted from the first byte of the data: [begin, end).
struct SafetensorsExtent {
  uint64_t begin = 0;
  uint64_t end = 0;
  const std::string* name = nullptr;  ///< a key of SafetensorsHeader::tensors
  TensorView* view = nullptr;         ///< its value
};

struct SafetensorsHeader {
  std::map<std::string, TensorView> tensors;  ///< without data
  std::vector<SafetensorsExtent> extents;     ///< one for each tensor, in the order of the header
};

/// Most dimensions of a tensor; published checkpoints have at most 4.
inline constexpr size_t kMaxSafetensorsRank = 8;

/// Reads the header's text, which starts at byte 8 of `file`. On success every tensor has a dtype,
/// a shape of non-negative sizes and an extent, none of them checked against another. Errors:
/// kBadFile, or kUnsupported for a dtype that is not among DType.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, const std::string& file);

/// "tensor 'name'", safe to print: long names are cut, anything but printable ASCII is escaped.
std::string tensor_place(std::string_view name);

}  // namespace moracle
