// Comparison and membership: ==, <, in, and dict lookup.
#pragma once

#include "text/jinja/values/value.h"

namespace moracle::jinja {

enum class Order { kLess, kLessEqual, kGreater, kGreaterEqual };

/// left == right. Errors: the budget is used up.
Result<bool> equal(Budget& budget, const Value& left, const Value& right);
/// left < right, and the other order operators. Errors: types without an order.
Result<bool> ordered(Budget& budget, Order order, const Value& left, const Value& right);
/// item in container. Errors: not a container, or an item of a type that it cannot contain.
Result<bool> contains(Budget& budget, const Value& container, const Value& item);
/// The value under `key`, or null. Errors: a key that cannot be hashed.
Result<const Value*> find(Budget& budget, const Mapping& mapping, const Value& key);
/// Substring search. Errors: the budget does not allow the worst case.
Result<size_t> find_text(Budget& budget, std::string_view text, std::string_view part,
                         size_t from = 0);

}  // namespace moracle::jinja
