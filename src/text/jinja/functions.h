// The functions that every template can call: range, dict, namespace, raise_exception,
// strftime_now.
#pragma once

#include <span>
#include <string_view>

#include "text/jinja/function.h"

namespace moracle::jinja {

std::span<const Function> global_functions();

/// transformers refuses attributes of namespaces that start with an underscore.
/// Errors: such a name.
Status check_attribute_name(std::string_view name);

}  // namespace moracle::jinja
