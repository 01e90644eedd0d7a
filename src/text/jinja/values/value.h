// Template values: the Python objects that a template can observe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "moracle/base.h"
#include "text/jinja/limits.h"

namespace moracle::jinja {

class Value;
class Loop;
struct Macro;
struct Namespace;
struct Sequence;
struct Mapping;
struct Method;
struct Function;
using Values = std::vector<Value>;

/// Jinja's Undefined: `why` is the fact of the Error that its use raises.
struct Undefined {
  std::shared_ptr<const std::string> why;
};
struct None {};
/// A str. The filter "safe" sets `markup`: Python's Markup concatenates differently.
struct Text {
  std::shared_ptr<const std::string> text;
  bool markup = false;
};

/// One value, cheap to copy. Lists and dicts are immutable, as in transformers' sandbox, so only a
/// namespace can contain itself. The Heap owns namespaces, macros and loops; values hold pointers.
class Value {
 public:
  using Variant =
      std::variant<Undefined, None, bool, int64_t, double, Text, std::shared_ptr<Sequence>,
                   std::shared_ptr<const Mapping>, std::shared_ptr<const Method>, const Function*,
                   Namespace*, const Macro*, Loop*>;

  Value() = default;
  template <class T>
  requires(!std::is_same_v<std::remove_cvref_t<T>, Value>) Value(T&& value)
      : variant_(std::forward<T>(value)) {}

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(variant_);
  }
  /// Null if the value has another type.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&variant_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_text() const { return is<Text>(); }
  /// The text; empty if the value is not a str.
  std::string_view text() const {
    const Text* text = as<Text>();
    return text ? std::string_view(*text->text) : std::string_view();
  }
  bool is_markup() const { return is_text() && as<Text>()->markup; }
  const Sequence* sequence() const {
    const auto* p = as<std::shared_ptr<Sequence>>();
    return p ? p->get() : nullptr;
  }
  Sequence* sequence() {
    auto* p = std::get_if<std::shared_ptr<Sequence>>(&variant_);
    return p ? p->get() : nullptr;
  }
  const Mapping* mapping() const {
    const auto* p = as<std::shared_ptr<const Mapping>>();
    return p ? p->get() : nullptr;
  }
  /// An int, or a bool as an int, as in Python.
  std::optional<int64_t> integer() const;
  /// An int, a bool or a float.
  std::optional<double> number() const;

 private:
  Variant variant_;
};

/// Python's sequence types.
enum class SequenceKind { kList, kTuple, kRange, kView, kGenerator };
struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  Values items;
  int depth = 1;       ///< nesting depth, this list included
  bool spent = false;  ///< a generator that was already iterated

  /// list, tuple and range support indexing and len(); views support len().
  bool indexable() const { return kind <= SequenceKind::kRange; }
  bool measurable() const { return kind != SequenceKind::kGenerator; }
};

/// A dict in insertion order.
struct Mapping {
  std::vector<std::pair<Value, Value>> entries;
  int depth = 1;
};

/// Bound method: `text.strip`.
struct Method {
  Value self;
  std::string name;
};

/// bool(value).
bool truth(const Value& value);
/// type(value).__name__, for messages.
std::string_view type_name(const Value& value);
/// Nesting depth of lists and dicts.
int depth(const Value& value);

/// Error for an operation that Python rejects for these types or values.
Error type_error(std::string fact);
/// Returns an undefined value. Its use raises an Error with this fact.
Value undefined(std::string why);
/// Error for the use of an undefined value.
Error undefined_error(const Value& value);

}  // namespace moracle::jinja
