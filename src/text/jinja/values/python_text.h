// str() and repr(): the text that {{ value }} prints.
#pragma once

#include <string>

#include "text/jinja/values/heap.h"

namespace moracle::jinja {

/// str(value). Errors: a value without a stable text (a namespace, a generator, a function).
Result<std::string> to_text(const Value& value);
/// Appends repr(value).
Status write_repr(Writer& out, const Value& value);
/// repr() of a float: the shortest digits that parse to the same value.
std::string float_repr(double value);

}  // namespace moracle::jinja
