// value.name, value[key] and value[start:stop:step].
#pragma once

#include <string_view>

#include "text/jinja/values/heap.h"

namespace moracle::jinja {

/// value.name as in Jinja: the method or attribute first, else the item. Undefined if there is
/// neither. Errors: an attribute of an undefined value.
Result<Value> get_attribute(Heap& heap, const Value& value, std::string_view name);
/// value[key]: the item first, else the attribute.
Result<Value> get_item(Heap& heap, const Value& value, const Value& key);
/// A slice. Bounds are ints, none, or null pointers if omitted.
Result<Value> get_slice(Heap& heap, const Value& value, const Value* start, const Value* stop,
                        const Value* step);

}  // namespace moracle::jinja
