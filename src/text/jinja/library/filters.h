// value|filter(arguments).
#pragma once

#include <span>
#include <string_view>

#include "text/jinja/function.h"

namespace moracle::jinja {

/// Returns the filter of that name, or null for omitted filters.
const Function* find_filter(std::string_view name);

/// Whether Jinja has a filter of that name that this renderer omits.
bool lacks_filter(std::string_view name);

/// The tables, grouped by the type that the filters work on.
std::span<const Function> text_filters();       // text_filters.cc
std::span<const Function> sequence_filters();   // sequence_filters.cc
std::span<const Function> selecting_filters();  // selecting_filters.cc
std::span<const Function> number_filters();     // number_filters.cc

/// Looks up "name", "a.b" or an index in an element, like the argument "attribute" of filters.
/// `fallback` (if any) replaces every part that is undefined.
Result<Value> get_path(Heap& heap, Value value, const Value& path, const Value* fallback = nullptr);

/// Keys that "sort" and similar filters compare: elements(value) by the attribute at `attribute`
/// (if given). Strings are in lower case unless `case_sensitive`.
Result<Values> comparison_keys(Heap& heap, const Values& items, const Value* attribute,
                               bool case_sensitive);

}  // namespace moracle::jinja
