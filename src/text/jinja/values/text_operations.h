// String operations that str methods and text filters share.
#pragma once

#include <optional>
#include <string_view>

#include "text/jinja/values/heap.h"
#include "text/jinja/values/unicode.h"

namespace moracle::jinja {

/// Operand of a string operation. Results keep `markup`, as with Python's Markup.
struct Source {
  std::string_view text;
  bool markup = false;
};

/// upper() and lower(). Errors of all functions here: the result is too long, or one character maps
/// to several.
Result<Value> cased(Heap& heap, Source source, Case to);
/// First character in upper case, the others in lower case.
Result<Value> capitalized(Heap& heap, Source source);
/// str.title(): capitalizes every run of letters.
Result<Value> titled(Heap& heap, Source source);
/// Replaces the first `count` occurrences; all of them if negative.
Result<Value> replaced(Heap& heap, std::string_view text, std::string_view from,
                       std::string_view to, int64_t count);
/// Splits into lines, without their ends unless `keep_ends`.
Result<Values> split_lines(Heap& heap, Source source, bool keep_ends);
/// str.split and str.rsplit: at most `limit` splits, unlimited if negative.
Result<Values> split_text(Heap& heap, Source source, std::optional<std::string_view> separator,
                          int64_t limit, bool from_right);

}  // namespace moracle::jinja
