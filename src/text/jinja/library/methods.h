// Methods of str, list, tuple and dict.
#pragma once

#include <span>
#include <string_view>

#include "text/jinja/function.h"

namespace moracle::jinja {

/// True if value.name is a method that this renderer implements.
bool has_method(const Value& value, std::string_view name);
/// True if Python's str or dict has this method and this renderer lacks it.
bool lacks_method(std::string_view name);
Result<Value> call_method(Heap& heap, const Method& method, Arguments arguments);

/// The table for str (string_methods.cc).
std::span<const Function> string_methods();

}  // namespace moracle::jinja
