// Arithmetic operators of Python: + - * / // % **.
#pragma once

#include <string_view>

#include "text/jinja/values/heap.h"

namespace moracle::jinja {

/// Computes `left sign right`. Errors: types without that operation, division by zero, ints beyond
/// 64 bits.
Result<Value> calculate(Heap& heap, std::string_view sign, const Value& left, const Value& right);
/// -value or +value.
Result<Value> apply_sign(std::string_view sign, const Value& value);

}  // namespace moracle::jinja
