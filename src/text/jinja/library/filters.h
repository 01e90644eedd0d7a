// Filters: value|filter(arguments).
#pragma once

#include <span>
#include <string_view>

#include "text/jinja/function.h"

namespace moracle::jinja {

/// Returns the filter of that name, or null if this renderer lacks it.
const Function* find_filter(std::string_view name);

/// True if Jinja has this filter and this renderer lacks it.
bool lacks_filter(std::string_view name);

/// The tables, grouped by the type that the filters work on.
std::span<const Function> text_filters();       // text_filters.cc
std::span<const Function> sequence_filters();   // sequence_filters.cc
std::span<const Function> selecting_filters();  // selecting_filters.cc
std::span<const Function> number_filters();     // number_filters.cc

/// Looks up the "attribute" argument of filters in an element: "name", "a.b" or an index.
/// `fallback` (if any) replaces each undefined step.
Result<Value> get_path(Heap& heap, Value value, const Value& path, const Value* fallback = nullptr);

/// Sort keys of the elements of `value`: the elements themselves, or their attribute at argument
/// `attribute`. Lower-cases strings unless `case_sensitive`.
Result<Values> comparison_keys(Heap& heap, const Values& items, const Value* attribute,
                               bool case_sensitive);

}  // namespace moracle::jinja
