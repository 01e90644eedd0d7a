#include "text/jinja/values/value.h"

#include <algorithm>

namespace moracle::jinja {

std::optional<int64_t> Value::integer() const {
  if (const auto* i = as<int64_t>()) return *i;
  if (const auto* b = as<bool>()) return *b ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto* d = as<double>()) return *d;
  if (const auto i = integer()) return static_cast<double>(*i);
  return std::nullopt;
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto* d = value.as<double>()) return *d != 0;
  if (const auto i = value.integer()) return *i != 0;
  if (value.is_text()) return !value.text().empty();
  if (const Sequence* s = value.sequence()) return !s->measurable() || !s->items.empty();
  if (const Mapping* m = value.mapping()) return !m->entries.empty();
  return true;
}

std::string_view type_name(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (value.is<bool>()) return "bool";
  if (value.is<int64_t>()) return "int";
  if (value.is<double>()) return "float";
  if (value.is_text()) return value.is_markup() ? "Markup" : "str";
  if (value.mapping()) return "dict";
  if (value.is<Namespace*>()) return "Namespace";
  if (value.is<const Macro*>()) return "Macro";
  if (value.is<Loop*>()) return "LoopContext";
  if (const Sequence* s = value.sequence()) {
    constexpr std::string_view kNames[] = {"list", "tuple", "range", "dict view", "generator"};
    return kNames[static_cast<int>(s->kind)];
  }
  return "function";
}

int depth(const Value& value) {
  if (const Sequence* s = value.sequence()) return s->depth;
  if (const Mapping* m = value.mapping()) return m->depth;
  if (const auto* method = value.as<std::shared_ptr<const Method>>()) {
    return depth((*method)->self) + 1;
  }
  return 0;
}

Error type_error(std::string fact) {
  return Error{ErrorKind::kBadFile, "", "", "operations that Python allows", std::move(fact)};
}

Value undefined(std::string why) {
  return Undefined{std::make_shared<const std::string>(std::move(why))};
}

Error undefined_error(const Value& value) {
  const Undefined* u = value.as<Undefined>();
  return Error{ErrorKind::kBadFile, "", "", "a defined value",
               u && u->why ? *u->why : std::string("an undefined value is used")};
}

}  // namespace moracle::jinja
