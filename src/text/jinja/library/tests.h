// value is test(arguments).
#pragma once

#include <string_view>

#include "text/jinja/function.h"

namespace moracle::jinja {

/// Returns the test of that name, or null for omitted tests. Tests return a bool.
const Function* find_test(std::string_view name);
/// Whether Jinja has a test of that name that this renderer omits.
bool lacks_test(std::string_view name);

}  // namespace moracle::jinja
