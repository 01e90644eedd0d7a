// Parses JSON of clients, whose objects keep the order of their members.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "moracle/base.h"

namespace moracle {

/// Members of one object at most, duplicates included. Reading a member of an ordered_json, and
/// looking up a key in a template, search all members.
inline constexpr size_t kMaxJsonMembers = 4096;

/// Arrays and objects of one text at most. Each takes a hundred times the memory of its two
/// brackets.
inline constexpr size_t kMaxJsonContainers = 1 << 17;

/// Takes time proportional to the text; `ordered_json::parse` searches all members for each key. If
/// a key occurs twice, the last value counts, at the place of the first. Errors: kBadFile, as
/// check_json_text; for invalid JSON or UTF-8, with the byte; for a number that is no double; for
/// more than kMaxJsonMembers, with the path of the object; for more than kMaxJsonContainers.
Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text);

}  // namespace moracle
