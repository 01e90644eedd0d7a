#include "text/jinja/subscript.h"

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "base/try.h"
#include "text/jinja/library/methods.h"
#include "text/jinja/loop.h"
#include "text/jinja/values/compare.h"
#include "text/jinja/values/python_text.h"
#include "text/jinja/values/unicode.h"

namespace moracle::jinja {

namespace {

Value missing(const Value& value, std::string_view name) {
  const std::string_view type = type_name(value);
  return undefined(str("'", type, value.is_none() ? "" : " object", "' has no attribute '",
                       name.substr(0, 100), "'"));
}

// Mutating attributes, which Jinja's sandbox hides.
bool is_hidden(const Value& value, std::string_view name) {
  constexpr std::string_view kOfDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  constexpr std::string_view kOfList[] = {"append", "clear",  "extend",  "insert",
                                          "pop",    "remove", "reverse", "sort"};
  if (value.mapping()) return std::ranges::find(kOfDict, name) != std::end(kOfDict);
  const Sequence* sequence = value.sequence();
  return sequence && sequence->kind == SequenceKind::kList &&
         std::ranges::find(kOfList, name) != std::end(kOfList);
}

// Slice bounds as in Python: positions from `start` by `step` while inside.
struct Range {
  int64_t start;
  int64_t stop;
  int64_t step;
};

int64_t clamp_bound(int64_t bound, int64_t size, int64_t least, int64_t most) {
  if (bound < 0) bound += size;
  return std::clamp(bound, least, most);
}

Result<std::optional<int64_t>> bound_of(const Value* value) {
  if (!value || value->is_none()) return std::optional<int64_t>();
  const auto integer = value->integer();
  if (!integer) return type_error(str("a slice with a '", type_name(*value), "' as its bound"));
  return std::optional<int64_t>(integer);
}

Result<Range> resolve(int64_t size, const Value* start, const Value* stop, const Value* step) {
  MORACLE_TRY(const auto from, bound_of(start));
  MORACLE_TRY(const auto to, bound_of(stop));
  MORACLE_TRY(const auto by, bound_of(step));
  Range range{0, 0, by.value_or(1)};
  if (range.step == 0) return type_error("a slice with step 0");
  // Clamp the step to prevent overflow in the addition. A step this large ends the slice anyway.
  const int64_t widest = std::numeric_limits<int64_t>::max() / 4;
  range.step = std::clamp(range.step, -widest, widest);
  const bool back = range.step < 0;
  const int64_t least = back ? -1 : 0;
  const int64_t most = back ? size - 1 : size;
  range.start = from ? clamp_bound(*from, size, least, most) : back ? most : least;
  range.stop = to ? clamp_bound(*to, size, least, most) : back ? least : most;
  return range;
}

template <class Take>
Status walk(const Range& range, Take take) {
  for (int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    take(static_cast<size_t>(i));
  }
  return {};
}

Result<Value> slice_text(Heap& heap, std::string_view text, bool markup, const Value* start,
                         const Value* stop, const Value* step) {
  MORACLE_CHECK(heap.budget().read(text.size() * 4));
  const auto size = static_cast<int64_t>(count_code_points(text));
  MORACLE_TRY(const Range range, resolve(size, start, stop, step));
  if (range.step == 1) {
    if (range.start >= range.stop) return heap.text("", markup);
    text.remove_prefix(bytes_of_code_points(text, static_cast<size_t>(range.start)));
    const auto count = static_cast<size_t>(range.stop - range.start);
    return heap.text(std::string(text.substr(0, bytes_of_code_points(text, count))), markup);
  }
  std::vector<size_t> starts;
  MORACLE_CHECK(heap.budget().create(text.size() * sizeof(size_t)));
  for (size_t at = 0; at < text.size(); at += code_point(text, at).bytes) starts.push_back(at);
  std::string out;
  MORACLE_CHECK(walk(
      range, [&](size_t i) { out += text.substr(starts[i], code_point(text, starts[i]).bytes); }));
  return heap.text(std::move(out), markup);
}

Result<Value> text_item(Heap& heap, const Value& value, int64_t index) {
  const std::string_view text = value.text();
  MORACLE_CHECK(heap.budget().read(text.size() * 2));
  const auto size = static_cast<int64_t>(count_code_points(text));
  if (index < 0) index += size;
  if (index < 0 || index >= size) return undefined("'str object' has no such element");
  const size_t at = bytes_of_code_points(text, static_cast<size_t>(index));
  return heap.text(std::string(text.substr(at, code_point(text, at).bytes)), value.is_markup());
}

}  // namespace

Result<Value> get_attribute(Heap& heap, const Value& value, std::string_view name) {
  if (value.is_undefined()) return undefined_error(value);
  if (const auto* space = value.as<Namespace*>()) {
    const auto found = (*space)->attributes.find(name);
    return found != (*space)->attributes.end() ? found->second : missing(value, name);
  }
  if (const auto* loop = value.as<Loop*>()) {
    MORACLE_TRY(const auto found, (*loop)->attribute(heap, name));
    return found ? *found : missing(value, name);
  }
  if (is_hidden(value, name)) {
    return undefined(str("access to attribute '", name, "' of a ", type_name(value),
                         " is unsafe: values cannot be changed"));
  }
  if (has_method(value, name)) return heap.method(value, name);
  if (const Mapping* mapping = value.mapping()) {
    MORACLE_TRY(const Value key, heap.text(std::string(name)));
    MORACLE_TRY(const Value* found, find(heap.budget(), *mapping, key));
    if (found) return *found;
  }
  return missing(value, name);
}

Result<Value> get_item(Heap& heap, const Value& value, const Value& key) {
  if (value.is_undefined()) return undefined_error(value);
  if (value.mapping()) {
    // Report a value that is not hashable as missing.
    auto found = find(heap.budget(), *value.mapping(), key);
    if (!found && found.error().kind != ErrorKind::kBadFile) return std::move(found).error();
    if (found && *found) return **found;
  }
  if (const auto index = key.integer()) {
    if (value.is_text()) return text_item(heap, value, *index);
    if (const Sequence* sequence = value.sequence(); sequence && sequence->indexable()) {
      const auto size = static_cast<int64_t>(sequence->items.size());
      const int64_t i = *index < 0 ? *index + size : *index;
      if (i >= 0 && i < size) return sequence->items[static_cast<size_t>(i)];
      return undefined(str(type_name(value), " object has no element ", *index));
    }
  }
  if (key.is_text()) return get_attribute(heap, value, key.text());
  return undefined(str(type_name(value), " object has no element of that kind"));
}

Result<Value> get_slice(Heap& heap, const Value& value, const Value* start, const Value* stop,
                        const Value* step) {
  if (value.is_undefined()) return undefined_error(value);
  if (value.is_text()) {
    return slice_text(heap, value.text(), value.is_markup(), start, stop, step);
  }
  const Sequence* sequence = value.sequence();
  if (!sequence || !sequence->indexable()) {
    return type_error(str("a slice of a '", type_name(value), "'"));
  }
  MORACLE_TRY(const Range range,
              resolve(static_cast<int64_t>(sequence->items.size()), start, stop, step));
  MORACLE_CHECK(heap.budget().read(sequence->items.size() * 16));
  Values items;
  MORACLE_CHECK(walk(range, [&](size_t i) { items.push_back(sequence->items[i]); }));
  return heap.sequence(sequence->kind, std::move(items));
}

}  // namespace moracle::jinja
