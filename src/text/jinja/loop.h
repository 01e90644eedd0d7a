// The variable "loop" inside {% for %}.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "text/jinja/function.h"

namespace moracle::jinja {

/// State and elements of one running loop. A condition ({% for x in y if z %}) is evaluated lazily,
/// as in Jinja, because the loop body may change what it reads.
class Loop {
 public:
  using Condition = std::function<Result<bool>(const Value&)>;
  Loop(Values items, Condition condition)
      : items_(std::move(items)), condition_(std::move(condition)) {}

  /// Advances to the next element; null at the end.
  Result<const Value*> advance();
  /// loop.name; empty if there is no such attribute.
  Result<std::optional<Value>> attribute(Heap& heap, std::string_view name);
  /// loop.cycle(...) and loop.changed(...).
  Result<Value> call(Heap& heap, std::string_view name, const Arguments& arguments);
  /// Frees the elements at the end of the loop. A template may still hold the loop object.
  void finish();

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  Status peek();  // finds the element after the current one, if not found yet
  Result<int64_t> length();

  Values items_;
  Condition condition_;
  int64_t index0_ = -1;
  bool peeking_ = false;
  size_t next_ = 0;  // first element whose condition is not evaluated yet
  size_t before_ = kNone, current_ = kNone, after_ = kNone;
  std::optional<Values> last_changed_;
};

}  // namespace moracle::jinja
