// Regular expressions of JSON schemas, rewritten for the engine.
#pragma once

#include <string>

#include "moracle/base.h"

namespace moracle::serve {

/// A pattern that the engine reads as JSON Schema does: in ASCII, without anchors, and with every
/// set of characters written out. It leaves out characters that JSON must escape.
struct SchemaPattern {
  std::string text;
  int64_t num_positions = 0;  ///< states that the engine compiles, about
};

/// A text matches as a whole. Errors: the pattern is wrong; it holds a construct that the engine
/// ignores or reads in another way, such as a lookahead; no text of JSON matches.
Result<SchemaPattern> lower_pattern(const std::string& pattern);

/// Any text of `min` to `max` characters; `max` -1: without an end.
SchemaPattern length_pattern(int64_t min, int64_t max);

/// Names of members that begin with none of the first characters of `names`.
SchemaPattern other_names(const std::vector<std::string>& names);

}  // namespace moracle::serve
