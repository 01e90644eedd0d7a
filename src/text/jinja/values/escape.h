// Concatenation of str where one side is "safe" (Python's Markup).
#pragma once

#include "text/jinja/values/heap.h"
#include "text/jinja/values/text_operations.h"

namespace moracle::jinja {

/// Concatenates. As with Python's Markup, a str beside a "safe" one is HTML-escaped, and the result
/// is "safe". Errors: the result is too long.
Result<Value> add_texts(Heap& heap, Source left, Source right);

}  // namespace moracle::jinja
