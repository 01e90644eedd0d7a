// json.dumps: the filter "tojson" under transformers.
#pragma once

#include <optional>
#include <string>

#include "text/jinja/values/heap.h"

namespace moracle::jinja {

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  ///< indentation per level; empty: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

/// Errors: a value without a JSON form, such as undefined.
Result<std::string> to_json(Heap& heap, const Value& value, const JsonStyle& style);

}  // namespace moracle::jinja
