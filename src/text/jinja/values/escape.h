// Sums of str where one side came from the filter "safe".
#pragma once

#include "text/jinja/values/heap.h"
#include "text/jinja/values/text_operations.h"

namespace moracle::jinja {

/// left + right. As with Python's Markup, a str beside a "safe" one is escaped for HTML, and the
/// sum is "safe". Errors: the result is too long.
Result<Value> add_texts(Heap& heap, Source left, Source right);

}  // namespace moracle::jinja
