// Allocates the values of one render and charges them to its budget.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/limits.h"
#include "text/jinja/values/value.h"

namespace moracle::jinja {

/// Result of namespace(): the only object with attributes that a template may set.
struct Namespace {
  std::map<std::string, Value, std::less<>> attributes;
};

class Heap {
 public:
  Budget& budget() { return budget_; }

  /// Errors of all functions below: a value too long or nested too deep, or an exhausted budget.
  Result<Value> text(std::string text, bool markup = false);
  Result<Value> sequence(SequenceKind kind, Values items);
  Result<Value> list(Values items) { return sequence(SequenceKind::kList, std::move(items)); }
  /// Later entries replace earlier ones of the same key. Errors: a value that cannot be a key.
  Result<Value> mapping(std::vector<std::pair<Value, Value>> entries);
  Result<Value> method(Value self, std::string_view name);
  Result<Value> make_namespace();

 private:
  Budget budget_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
};

/// Builds one string. Stops growing at the limit, so memory stays bounded.
class Writer {
 public:
  void add(std::string_view part) {
    if (full_ || part.size() > kMaxTextBytes - text_.size()) {
      full_ = true;
    } else {
      text_ += part;
    }
  }
  bool full() const { return full_; }
  size_t size() const { return text_.size(); }
  /// Errors: the text did not fit.
  Result<std::string> take() &&;

 private:
  std::string text_;
  bool full_ = false;
};

}  // namespace moracle::jinja
