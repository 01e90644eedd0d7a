// value is test(arguments).
#pragma once

#include <string_view>

#include "text/jinja/function.h"

namespace moracle::jinja {

/// The test of that name, or null for those that are left out. Tests give a bool.
const Function* find_test(std::string_view name);
/// Whether Jinja has a test of that name that is left out here.
bool lacks_test(std::string_view name);

}  // namespace moracle::jinja
