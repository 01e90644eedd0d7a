// Values of a template: stand-ins for Python objects, as far as templates can tell.
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

/// A name without a value, and the reason: the text of the Error on its use.
struct Undefined {
  std::shared_ptr<const std::string> why;
};
struct None {};
/// A str. `markup` is set by the filter "safe": Python's Markup behaves differently when added to.
struct Text {
  std::shared_ptr<const std::string> text;
  bool markup = false;
};

/// One value, cheap to copy. Lists and dicts never change after creation (the sandbox of
/// transformers forbids it), so only namespaces can contain themselves. The Heap owns namespaces,
/// macros and loops; values point to them.
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
  /// An int or a bool, which is an int in Python.
  std::optional<int64_t> integer() const;
  /// An int, a bool or a float.
  std::optional<double> number() const;

 private:
  Variant variant_;
};

/// Sequence types of Python; they differ in the allowed operations.
enum class SequenceKind { kList, kTuple, kRange, kView, kGenerator };
struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  Values items;
  int depth = 1;       ///< levels of lists inside, this one included
  bool spent = false;  ///< a generator that was already iterated

  /// list, tuple and range can be indexed and measured; views can be measured.
  bool indexable() const { return kind <= SequenceKind::kRange; }
  bool measurable() const { return kind != SequenceKind::kGenerator; }
};

/// A dict, in order of insertion.
struct Mapping {
  std::vector<std::pair<Value, Value>> entries;
  int depth = 1;
};

/// A method with its object: `text.strip`.
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

/// The Error for an operation that Python refuses for these types or values.
Error type_error(std::string fact);
/// Makes an undefined value; an Error on its use states the reason.
Value undefined(std::string why);
/// The Error for using an undefined value.
Error undefined_error(const Value& value);

}  // namespace moracle::jinja
