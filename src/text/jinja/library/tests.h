// value is test(arguments).
#pragma once

#include <string_view>

#include "text/jinja/function.h"

namespace moracle::jinja {

/// Returns the test of that name, or null if this renderer lacks it. Tests return a bool.
const Function* find_test(std::string_view name);
/// True if Jinja has this test and this renderer lacks it.
bool lacks_test(std::string_view name);

}  // namespace moracle::jinja
