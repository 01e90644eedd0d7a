// Functions available in every template: range, dict, namespace, raise_exception, strftime_now.
#pragma once

#include <span>
#include <string_view>

#include "text/jinja/function.h"

namespace moracle::jinja {

std::span<const Function> global_functions();

/// Rejects attribute names of namespaces that start with an underscore, as transformers does.
/// Errors: such a name.
Status check_attribute_name(std::string_view name);

}  // namespace moracle::jinja
