// printf-style formatting, as Python's '%' does it for the filter "format".
#pragma once

#include "text/jinja/function.h"

namespace moracle::jinja {

/// self % arguments, with the conversions s, d, i, f and %, named arguments as %(name)s, '0', '-',
/// '+', a width and a precision. Errors: other conversions; missing or unused arguments; a value of
/// another type.
Result<Value> percent_format(Heap& heap, const Value& self, const Arguments& arguments);

}  // namespace moracle::jinja
