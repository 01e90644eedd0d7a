// Parses JSON from clients. Objects keep the order of their members.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "moracle/base.h"

namespace moracle {

/// Maximum number of members of one object, duplicates included. Lookups in an ordered_json and in
/// templates are linear.
inline constexpr size_t kMaxJsonMembers = 4096;

/// Maximum number of arrays and objects in one text. Each takes a hundred times the memory of its
/// two brackets.
inline constexpr size_t kMaxJsonContainers = 1 << 17;

/// Parses in linear time; `ordered_json::parse` searches all members for each key. For duplicate
/// keys the last value counts, at the position of the first. Errors: kBadFile, as check_json_text;
/// for invalid JSON or UTF-8, with the byte; for a number outside the range of double; for more
/// than kMaxJsonMembers, with the path of the object; for more than kMaxJsonContainers.
Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text);

}  // namespace moracle
