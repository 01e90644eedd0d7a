// Rewrites regular expressions of JSON schemas for the grammar engine.
#pragma once

#include <string>

#include "moracle/base.h"

namespace moracle::serve {

/// A pattern with the same meaning for the engine: ASCII, no anchors, every character set written
/// out. Excludes characters that JSON must escape.
struct SchemaPattern {
  std::string text;
  int64_t num_positions = 0;  ///< approximate number of automaton states
};

/// Lowers a pattern to match whole strings. Errors: an invalid pattern; a construct that the engine
/// ignores or interprets differently, such as lookahead; no JSON string matches.
Result<SchemaPattern> lower_pattern(const std::string& pattern);

/// The same for texts outside JSON, which may contain every character.
Result<SchemaPattern> lower_text_pattern(const std::string& pattern);

/// Any string of `min` to `max` characters; `max` -1: unbounded.
SchemaPattern length_pattern(int64_t min, int64_t max);

/// Member names that share no first character with any of `names`.
SchemaPattern other_names(const std::vector<std::string>& names);

}  // namespace moracle::serve
