#include "text/jinja/library/methods.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "text/jinja/values/compare.h"

namespace moracle::jinja {

namespace {

Result<Value> dict_get(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(const Value* found, find(heap.budget(), *self.mapping(), arguments[0]));
  if (found) return *found;
  return arguments.has(1) ? arguments[1] : Value(None{});
}

Result<Value> dict_keys(Heap& heap, const Value& self, const BoundArguments&) {
  Values keys;
  for (const auto& [key, value] : self.mapping()->entries) keys.push_back(key);
  return heap.sequence(SequenceKind::kView, std::move(keys));
}

Result<Value> dict_values(Heap& heap, const Value& self, const BoundArguments&) {
  Values values;
  for (const auto& [key, value] : self.mapping()->entries) values.push_back(value);
  return heap.sequence(SequenceKind::kView, std::move(values));
}

Result<Value> dict_items(Heap& heap, const Value& self, const BoundArguments&) {
  Values items;
  for (const auto& [key, value] : self.mapping()->entries) {
    MORACLE_TRY(Value pair, heap.sequence(SequenceKind::kTuple, {key, value}));
    items.push_back(std::move(pair));
  }
  return heap.sequence(SequenceKind::kView, std::move(items));
}

Result<Value> same(Heap&, const Value& self, const BoundArguments&) {
  return self;
}

Result<Value> list_index(Heap& heap, const Value& self, const BoundArguments& arguments) {
  const Values& items = self.sequence()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    MORACLE_TRY(const bool found, equal(heap.budget(), items[i], arguments[0]));
    if (found) return Value(static_cast<int64_t>(i));
  }
  return type_error("'index' of an element that is not in the list");
}

Result<Value> list_count(Heap& heap, const Value& self, const BoundArguments& arguments) {
  int64_t count = 0;
  for (const Value& item : self.sequence()->items) {
    MORACLE_TRY(const bool found, equal(heap.budget(), item, arguments[0]));
    if (found) ++count;
  }
  return Value(count);
}

constexpr Function kDictMethods[] = {
    {"get", 1, "key default", &dict_get},
    {"keys", 0, "", &dict_keys},
    {"values", 0, "", &dict_values},
    {"items", 0, "", &dict_items},
    {"copy", 0, "", &same},
};

constexpr Function kListMethods[] = {
    {"index", 1, "value", &list_index},
    {"count", 1, "value", &list_count},
    {"copy", 0, "", &same},  // must be last: tuples lack it
};

std::span<const Function> methods_of(const Value& value) {
  if (value.is_text()) return string_methods();
  if (value.mapping()) return kDictMethods;
  const Sequence* sequence = value.sequence();
  if (!sequence || !sequence->indexable()) return {};
  const std::span<const Function> methods = kListMethods;
  return sequence->kind == SequenceKind::kList ? methods : methods.first(methods.size() - 1);
}

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  return find_function(methods_of(value), name) != nullptr;
}

bool lacks_method(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "casefold",  "center",      "encode",    "expandtabs", "format_map",   "isalnum",
      "isalpha",   "isascii",     "isdecimal", "isdigit",    "isidentifier", "islower",
      "isnumeric", "isprintable", "istitle",   "isupper",    "ljust",        "maketrans",
      "rindex",    "rjust",       "swapcase",  "translate",  "zfill",        "fromkeys",
  };
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

Result<Value> call_method(Heap& heap, const Method& method, Arguments arguments) {
  const Function* function = find_function(methods_of(method.self), method.name);
  if (!function) return type_error(str("the method '", method.name, "'"));
  return invoke(heap, *function, method.self, std::move(arguments));
}

}  // namespace moracle::jinja
