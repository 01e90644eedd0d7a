// Built-in callables: each filter, test, method and global function is one row in a table of
// Function.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/values/heap.h"

namespace moracle::jinja {

/// Arguments as written in a call.
struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Arguments bound to parameters, by position of the parameter.
class BoundArguments {
 public:
  bool has(size_t i) const { return i < values_.size() && values_[i].has_value(); }
  const Value& operator[](size_t i) const { return *values_[i]; }
  /// The flag at `i`; false if omitted.
  bool flag(size_t i) const { return has(i) && truth(*values_[i]); }
  /// Whether the argument is given and not none.
  bool some(size_t i) const { return has(i) && !values_[i]->is_none(); }
  /// The argument as a str or an int. Errors: it is something else.
  Result<std::string_view> text(size_t i) const;
  Result<int64_t> integer(size_t i) const;
  /// All arguments as given, for a Function with parameters "*".
  const Arguments& raw() const { return raw_; }

 private:
  friend Result<BoundArguments> bind(const Function& function, Arguments arguments);
  std::vector<std::optional<Value>> values_;
  Arguments raw_;
};

struct Function {
  std::string_view name;
  size_t required;              ///< number of parameters without a default
  std::string_view parameters;  ///< names with spaces between them, or "*" for any
  /// `self` is the value before '|', 'is' or '.'; undefined for global functions.
  Result<Value> (*run)(Heap& heap, const Value& self, const BoundArguments& arguments);
};

/// Returns the function of that name, or null.
const Function* find_function(std::span<const Function> table, std::string_view name);
/// Errors: unknown, missing or too many arguments.
Result<BoundArguments> bind(const Function& function, Arguments arguments);
/// Binds the arguments and runs the function. Charges the budget for the bytes of `self` and of the
/// arguments.
Result<Value> invoke(Heap& heap, const Function& function, const Value& self, Arguments arguments);

/// list(value): the elements of Python's iteration. Exhausts a generator. Errors: a value that is
/// not iterable.
Result<Values> elements(Heap& heap, const Value& value);

}  // namespace moracle::jinja
