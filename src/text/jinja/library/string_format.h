// str.format with plain fields: "{}", "{0}", "{name}".
#pragma once

#include "text/jinja/function.h"

namespace moracle::jinja {

/// Errors: fields with attributes, conversions or a format, and missing arguments.
Result<Value> format_method(Heap& heap, const Value& self, const BoundArguments& arguments);

}  // namespace moracle::jinja
