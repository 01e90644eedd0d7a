// map, select, reject, selectattr, rejectattr: filters that apply another filter or a test.
#include "base/text.h"
#include "base/try.h"
#include "text/jinja/library/filters.h"
#include "text/jinja/library/tests.h"

namespace moracle::jinja {

namespace {

// Returns the positional arguments from `first` on, for the applied filter or test.
Arguments rest_of(const Arguments& arguments, size_t first) {
  Arguments rest{{}, arguments.named};
  for (size_t i = first; i < arguments.positional.size(); ++i) {
    rest.positional.push_back(arguments.positional[i]);
  }
  return rest;
}

Result<Values> map_attribute(Heap& heap, const Values& items, const Arguments& arguments) {
  const Value* path = nullptr;
  const Value* fallback = nullptr;
  for (const auto& [name, value] : arguments.named) {
    if (name == "attribute") {
      path = &value;
    } else if (name == "default") {
      fallback = value.is_none() ? nullptr : &value;
    } else {
      return type_error(str("'map' with an argument '", name, "'"));
    }
  }
  if (!path) return type_error("'map' without a filter");
  Values mapped;
  for (const Value& item : items) {
    MORACLE_TRY(Value value, get_path(heap, item, *path, fallback));
    mapped.push_back(std::move(value));
  }
  return mapped;
}

Result<Values> map_filter_to(Heap& heap, const Values& items, const Arguments& arguments) {
  const std::string_view name = arguments.positional[0].text();
  const Function* filter = find_filter(name);
  if (!filter) return unsupported(str("the filter '", name, "'"));
  if (filter->run == find_filter("map")->run) return unsupported("'map' of the filter 'map'");
  Values mapped;
  for (const Value& item : items) {
    MORACLE_TRY(Value value, invoke(heap, *filter, item, rest_of(arguments, 1)));
    mapped.push_back(std::move(value));
  }
  return mapped;
}

Result<Value> map_filter(Heap& heap, const Value& self, const BoundArguments& bound) {
  Values mapped;
  if (truth(self)) {
    MORACLE_TRY(const Values items, elements(heap, self));
    const bool attribute = bound.raw().positional.empty();
    MORACLE_TRY(mapped, attribute ? map_attribute(heap, items, bound.raw())
                                  : map_filter_to(heap, items, bound.raw()));
  }
  return heap.sequence(SequenceKind::kGenerator, std::move(mapped));
}

template <bool by_attribute, bool keeps>
Result<Value> select_filter(Heap& heap, const Value& self, const BoundArguments& bound) {
  const Values& given = bound.raw().positional;
  Values kept;
  if (!truth(self)) return heap.sequence(SequenceKind::kGenerator, std::move(kept));
  if (by_attribute && given.empty()) return type_error("a filter without the attribute's name");
  constexpr size_t kTest = by_attribute ? 1 : 0;
  const Function* test = nullptr;
  if (given.size() > kTest) {
    test = find_test(given[kTest].text());
    if (!test) return unsupported(str("the test '", given[kTest].text(), "'"));
  }
  MORACLE_TRY(const Values items, elements(heap, self));
  for (const Value& item : items) {
    MORACLE_CHECK(heap.budget().spend(1));
    Value tested = item;
    if (by_attribute) {
      MORACLE_TRY(tested, get_path(heap, std::move(tested), given[0]));
    }
    if (test) {
      MORACLE_TRY(tested, invoke(heap, *test, tested, rest_of(bound.raw(), kTest + 1)));
    }
    if (truth(tested) == keeps) kept.push_back(item);
  }
  return heap.sequence(SequenceKind::kGenerator, std::move(kept));
}

constexpr Function kSelectingFilters[] = {
    {"map", 0, "*", &map_filter},
    {"select", 0, "*", &select_filter<false, true>},
    {"reject", 0, "*", &select_filter<false, false>},
    {"selectattr", 0, "*", &select_filter<true, true>},
    {"rejectattr", 0, "*", &select_filter<true, false>},
};

}  // namespace

std::span<const Function> selecting_filters() {
  return kSelectingFilters;
}

}  // namespace moracle::jinja
