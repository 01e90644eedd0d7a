// value|filter(arguments).
#pragma once

#include <span>
#include <string_view>

#include "text/jinja/function.h"

namespace moracle::jinja {

/// The filter of that name, or null for those that are left out.
const Function* find_filter(std::string_view name);

/// Whether Jinja has a filter of that name that is left out here.
bool lacks_filter(std::string_view name);

/// The tables, by what the filters work on.
std::span<const Function> text_filters();       // text_filters.cc
std::span<const Function> sequence_filters();   // sequence_filters.cc
std::span<const Function> selecting_filters();  // selecting_filters.cc
std::span<const Function> number_filters();     // number_filters.cc

/// Looks up "name", "a.b" or an index in an element, as the argument "attribute" of filters does.
/// `fallback` (if any) takes the place of every part that is undefined.
Result<Value> get_path(Heap& heap, Value value, const Value& path, const Value* fallback = nullptr);

/// elements(value) by the attribute at `attribute` (if given), strings in lower case unless at
/// `case_sensitive` there is a true value: what "sort" and its kin compare.
Result<Values> comparison_keys(Heap& heap, const Values& items, const Value* attribute,
                               bool case_sensitive);

}  // namespace moracle::jinja
