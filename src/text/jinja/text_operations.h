// What methods of str and filters on text have in common.
#pragma once

#include <optional>
#include <string_view>

#include "text/jinja/heap.h"
#include "text/jinja/unicode.h"

namespace moracle::jinja {

/// A str to work on; results keep its `markup`, as with Python's Markup.
struct Source {
  std::string_view text;
  bool markup = false;
};

/// upper() and lower(). Errors of all of these: the result is too long, or a character changes
/// into several.
Result<Value> cased(Heap& heap, Source source, Case to);
/// First character in upper case, the others in lower case.
Result<Value> capitalized(Heap& heap, Source source);
/// str.title(): so for every run of letters.
Result<Value> titled(Heap& heap, Source source);
/// The first `count` occurrences replaced; all of them when negative.
Result<Value> replaced(Heap& heap, std::string_view text, std::string_view from,
                       std::string_view to, int64_t count);
/// The lines, without their ends unless `keep_ends`.
Result<Values> split_lines(Heap& heap, Source source, bool keep_ends);
/// str.split and str.rsplit; `limit` splits at most, all when negative.
Result<Values> split_text(Heap& heap, Source source, std::optional<std::string_view> separator,
                          int64_t limit, bool from_right);

}  // namespace moracle::jinja
