#include "text/jinja/function.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "text/jinja/values/unicode.h"

namespace moracle::jinja {

namespace {

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    parts.push_back(text.substr(0, space));
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return parts;
}

size_t weight(const Value& value) {
  if (value.is_text()) return value.text().size();
  if (const Sequence* s = value.sequence()) return s->items.size() * 16;
  if (const Mapping* m = value.mapping()) return m->entries.size() * 32;
  return 0;
}

Error wrong_type(const Value& value, std::string_view wanted) {
  if (value.is_undefined()) return undefined_error(value);
  return type_error(str("a '", type_name(value), "' where a ", wanted, " is needed"));
}

}  // namespace

Result<std::string_view> BoundArguments::text(size_t i) const {
  if (!has(i) || !values_[i]->is_text()) {
    return wrong_type(has(i) ? *values_[i] : Value(None{}), "str");
  }
  return values_[i]->text();
}

Result<int64_t> BoundArguments::integer(size_t i) const {
  const auto value = has(i) ? values_[i]->integer() : std::nullopt;
  if (!value) return wrong_type(has(i) ? *values_[i] : Value(None{}), "int");
  return *value;
}

const Function* find_function(std::span<const Function> table, std::string_view name) {
  for (const Function& row : table) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

Result<BoundArguments> bind(const Function& function, Arguments arguments) {
  BoundArguments bound;
  if (function.parameters == "*") {
    bound.raw_ = std::move(arguments);
    return bound;
  }
  const std::vector<std::string_view> names = words(function.parameters);
  bound.values_.resize(names.size());
  if (arguments.positional.size() > names.size()) {
    return type_error(str("'", function.name, "' with ", arguments.positional.size(),
                          " arguments instead of ", names.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    bound.values_[i] = std::move(arguments.positional[i]);
  }
  for (auto& [name, value] : arguments.named) {
    size_t i = 0;
    while (i < names.size() && names[i] != name) ++i;
    if (i == names.size() || bound.values_[i]) {
      return type_error(str("'", function.name, "' with an argument '", name, "'"));
    }
    bound.values_[i] = std::move(value);
  }
  for (size_t i = 0; i < function.required; ++i) {
    if (!bound.values_[i]) {
      return type_error(str("'", function.name, "' without its argument '", names[i], "'"));
    }
  }
  return bound;
}

Result<Value> invoke(Heap& heap, const Function& function, const Value& self, Arguments arguments) {
  size_t read = weight(self);
  for (const Value& value : arguments.positional) read += weight(value);
  for (const auto& [name, value] : arguments.named) read += weight(value);
  MORACLE_CHECK(heap.budget().read(read));
  MORACLE_TRY(const BoundArguments bound, bind(function, std::move(arguments)));
  return function.run(heap, self, bound);
}

Result<Values> elements(Heap& heap, const Value& value) {
  Values items;
  if (value.is_undefined()) return items;
  if (value.is_text()) {
    const std::string_view text = value.text();
    MORACLE_CHECK(heap.budget().read(text.size()));
    for (size_t at = 0; at < text.size();) {
      const size_t bytes = code_point(text, at).bytes;
      MORACLE_TRY(Value character, heap.text(std::string(text.substr(at, bytes))));
      items.push_back(std::move(character));
      at += bytes;
    }
  } else if (const Mapping* mapping = value.mapping()) {
    MORACLE_CHECK(heap.budget().read(mapping->entries.size() * 32));
    for (const auto& [key, entry] : mapping->entries) items.push_back(key);
  } else if (value.sequence()) {
    Value copy = value;
    Sequence& sequence = *copy.sequence();
    MORACLE_CHECK(heap.budget().create(sequence.items.size() * sizeof(Value)));
    MORACLE_CHECK(heap.budget().read(sequence.items.size() * 16));
    if (sequence.spent) return items;
    items = sequence.items;
    sequence.spent = sequence.kind == SequenceKind::kGenerator;
  } else {
    return type_error(str("iterating over a '", type_name(value), "'"));
  }
  return items;
}

}  // namespace moracle::jinja
