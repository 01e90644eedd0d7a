// json.dumps, which the filter "tojson" is under transformers.
#pragma once

#include <optional>
#include <string>

#include "text/jinja/heap.h"

namespace moracle::jinja {

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  ///< one level of it; without, everything is on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

/// Errors: a value that JSON does not have, such as an undefined one.
Result<std::string> to_json(Heap& heap, const Value& value, const JsonStyle& style);

}  // namespace moracle::jinja
