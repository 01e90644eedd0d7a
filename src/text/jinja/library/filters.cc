#include "text/jinja/library/filters.h"

#include <algorithm>
#include <charconv>

#include "base/try.h"
#include "text/jinja/subscript.h"
#include "text/jinja/values/text_operations.h"

namespace moracle::jinja {

const Function* find_filter(std::string_view name) {
  for (auto table : {text_filters(), sequence_filters(), selecting_filters(), number_filters()}) {
    if (const Function* found = find_function(table, name)) return found;
  }
  return nullptr;
}

bool lacks_filter(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "attr",        "batch",     "center", "e",         "escape",   "filesizeformat",
      "forceescape", "groupby",   "pprint", "random",    "slice",    "striptags",
      "truncate",    "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr",
  };
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

Result<Value> get_path(Heap& heap, Value value, const Value& path, const Value* fallback) {
  if (path.is_none()) return value;
  if (!path.is_text()) {
    MORACLE_TRY(value, get_item(heap, value, path));
    return value.is_undefined() && fallback ? *fallback : value;
  }
  std::string_view rest = path.text();
  while (true) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    const bool index =
        !part.empty() && part.size() < 10 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    Value key;
    if (index) {
      int64_t number = 0;
      std::from_chars(part.data(), part.data() + part.size(), number);
      key = number;
    } else {
      MORACLE_TRY(key, heap.text(std::string(part)));
    }
    MORACLE_TRY(value, get_item(heap, value, key));
    if (value.is_undefined() && fallback) value = *fallback;
    if (dot == rest.size()) return value;
    rest.remove_prefix(dot + 1);
  }
}

Result<Values> comparison_keys(Heap& heap, const Values& items, const Value* attribute,
                               bool case_sensitive) {
  Values keys;
  for (Value key : items) {
    if (attribute) {
      if (attribute->text().find(',') != std::string_view::npos) {
        return unsupported("several attributes in one filter");
      }
      MORACLE_TRY(key, get_path(heap, std::move(key), *attribute));
    }
    if (!case_sensitive && key.is_text()) {
      MORACLE_CHECK(heap.budget().read(key.text().size()));
      MORACLE_TRY(key, cased(heap, {key.text(), false}, Case::kLower));
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

}  // namespace moracle::jinja
