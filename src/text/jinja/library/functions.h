// Global functions: range, dict, namespace, raise_exception, strftime_now.
#pragma once

#include <span>
#include <string_view>

#include "text/jinja/function.h"

namespace moracle::jinja {

std::span<const Function> global_functions();

/// Rejects namespace attributes that start with an underscore, as transformers does.
Status check_attribute_name(std::string_view name);

}  // namespace moracle::jinja
