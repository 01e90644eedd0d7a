// str() and repr() as in Python. {{ value }} prints str(value).
#pragma once

#include <string>

#include "text/jinja/values/heap.h"

namespace moracle::jinja {

/// str(value). Errors: a namespace, generator or function, whose text in Python holds an address.
Result<std::string> to_text(const Value& value);
/// Appends repr(value).
Status write_repr(Writer& out, const Value& value);
/// repr() of a float: the shortest digits that parse back to the same value.
std::string float_repr(double value);

}  // namespace moracle::jinja
