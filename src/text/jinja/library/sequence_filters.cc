// Filters on whole lists and dicts.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "text/jinja/library/filters.h"
#include "text/jinja/library/methods.h"
#include "text/jinja/library/sorting.h"
#include "text/jinja/values/compare.h"
#include "text/jinja/values/unicode.h"

namespace moracle::jinja {

namespace {

const Value* given(const BoundArguments& arguments, size_t i) {
  return arguments.some(i) ? &arguments[i] : nullptr;
}

Result<Value> default_filter(Heap& heap, const Value& self, const BoundArguments& arguments) {
  if (!self.is_undefined() && !(arguments.flag(1) && !truth(self))) return self;
  if (arguments.has(0)) return arguments[0];
  return heap.text("");
}

Result<Value> length_filter(Heap&, const Value& self, const BoundArguments&) {
  if (self.is_undefined()) return Value(int64_t{0});
  if (self.is_text()) return Value(static_cast<int64_t>(count_code_points(self.text())));
  if (self.mapping()) return Value(static_cast<int64_t>(self.mapping()->entries.size()));
  const Sequence* sequence = self.sequence();
  if (sequence && sequence->measurable())
    return Value(static_cast<int64_t>(sequence->items.size()));
  return type_error(str("'length' of a '", type_name(self), "'"));
}

Result<Value> list_filter(Heap& heap, const Value& self, const BoundArguments&) {
  MORACLE_TRY(Values items, elements(heap, self));
  return heap.list(std::move(items));
}

Result<Value> first_filter(Heap& heap, const Value& self, const BoundArguments&) {
  MORACLE_TRY(const Values items, elements(heap, self));
  return items.empty() ? undefined("No first item, sequence was empty.") : items.front();
}

Result<Value> last_filter(Heap& heap, const Value& self, const BoundArguments&) {
  if (self.sequence() && !self.sequence()->measurable()) {
    return type_error("'last' of a generator");
  }
  MORACLE_TRY(const Values items, elements(heap, self));
  return items.empty() ? undefined("No last item, sequence was empty.") : items.back();
}

Result<Value> reverse_filter(Heap& heap, const Value& self, const BoundArguments&) {
  MORACLE_TRY(Values items, elements(heap, self));
  std::reverse(items.begin(), items.end());
  if (!self.is_text()) return heap.sequence(SequenceKind::kGenerator, std::move(items));
  std::string text;
  for (const Value& character : items) text += character.text();
  return heap.text(std::move(text), self.is_markup());
}

Result<Value> items_filter(Heap& heap, const Value& self, const BoundArguments&) {
  if (self.is_undefined()) return heap.sequence(SequenceKind::kGenerator, {});
  if (!self.mapping()) return type_error("'items' of a value that is not a dict");
  Values items;
  for (const auto& [key, value] : self.mapping()->entries) {
    MORACLE_TRY(Value pair, heap.sequence(SequenceKind::kTuple, {key, value}));
    items.push_back(std::move(pair));
  }
  return heap.sequence(SequenceKind::kGenerator, std::move(items));
}

Result<Value> in_order(Heap& heap, const Values& items, const Values& keys, bool reverse) {
  MORACLE_TRY(const auto order, sorted_indices(heap.budget(), keys, reverse));
  Values sorted;
  for (size_t i : order) sorted.push_back(items[i]);
  return heap.list(std::move(sorted));
}

Result<Value> sort_filter(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(const Values items, elements(heap, self));
  MORACLE_TRY(const Values keys,
              comparison_keys(heap, items, given(arguments, 2), arguments.flag(1)));
  return in_order(heap, items, keys, arguments.flag(0));
}

Result<Value> dictsort_filter(Heap& heap, const Value& self, const BoundArguments& arguments) {
  if (self.is_undefined()) return undefined_error(self);
  if (!self.mapping()) return type_error("'dictsort' of a value that is not a dict");
  const bool by_value = arguments.has(1) && arguments[1].text() == "value";
  if (arguments.has(1) && !by_value && arguments[1].text() != "key") {
    return type_error("'dictsort' with 'by' other than 'key' or 'value'");
  }
  Values pairs, parts;
  for (const auto& [key, value] : self.mapping()->entries) {
    MORACLE_TRY(Value pair, heap.sequence(SequenceKind::kTuple, {key, value}));
    pairs.push_back(std::move(pair));
    parts.push_back(by_value ? value : key);
  }
  MORACLE_TRY(const Values keys, comparison_keys(heap, parts, nullptr, arguments.flag(0)));
  return in_order(heap, pairs, keys, arguments.flag(2));
}

Result<Value> unique_filter(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(const Values items, elements(heap, self));
  MORACLE_TRY(const Values keys,
              comparison_keys(heap, items, given(arguments, 1), arguments.flag(0)));
  // Python stores seen values as dict keys: reject values that are not hashable.
  Mapping seen;
  Values kept;
  for (size_t i = 0; i < items.size(); ++i) {
    MORACLE_TRY(const Value* known, find(heap.budget(), seen, keys[i]));
    if (known) continue;
    seen.entries.emplace_back(keys[i], None{});
    kept.push_back(items[i]);
  }
  return heap.sequence(SequenceKind::kGenerator, std::move(kept));
}

template <bool largest>
Result<Value> extreme_filter(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(const Values items, elements(heap, self));
  if (items.empty()) return undefined("No aggregated item, sequence was empty.");
  MORACLE_TRY(const Values keys,
              comparison_keys(heap, items, given(arguments, 1), arguments.flag(0)));
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    MORACLE_TRY(const bool better, ordered(heap.budget(), largest ? Order::kGreater : Order::kLess,
                                           keys[i], keys[best]));
    if (better) best = i;
  }
  return items[best];
}

constexpr Function kSequenceFilters[] = {
    {"default", 0, "default_value boolean", &default_filter},
    {"d", 0, "default_value boolean", &default_filter},
    {"length", 0, "", &length_filter},
    {"count", 0, "", &length_filter},
    {"list", 0, "", &list_filter},
    {"first", 0, "", &first_filter},
    {"last", 0, "", &last_filter},
    {"reverse", 0, "", &reverse_filter},
    {"items", 0, "", &items_filter},
    {"sort", 0, "reverse case_sensitive attribute", &sort_filter},
    {"dictsort", 0, "case_sensitive by reverse", &dictsort_filter},
    {"unique", 0, "case_sensitive attribute", &unique_filter},
    {"min", 0, "case_sensitive attribute", &extreme_filter<false>},
    {"max", 0, "case_sensitive attribute", &extreme_filter<true>},
};

}  // namespace

std::span<const Function> sequence_filters() {
  return kSequenceFilters;
}

}  // namespace moracle::jinja
