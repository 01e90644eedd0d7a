// Methods of str.
#include "base/text.h"
#include "base/try.h"
#include "text/jinja/library/methods.h"
#include "text/jinja/library/string_format.h"
#include "text/jinja/values/compare.h"
#include "text/jinja/values/text_operations.h"

namespace moracle::jinja {

namespace {

Source source(const Value& self) {
  return {self.text(), self.is_markup()};
}

Result<std::optional<std::string_view>> optional_text(const BoundArguments& arguments, size_t i) {
  if (!arguments.some(i)) return std::optional<std::string_view>();
  MORACLE_TRY(const std::string_view text, arguments.text(i));
  return std::optional<std::string_view>(text);
}

template <Side side>
Result<Value> strip_method(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(const auto chars, optional_text(arguments, 0));
  if (chars) MORACLE_CHECK(find_text(heap.budget(), self.text(), *chars));
  return heap.text(std::string(strip(self.text(), side, chars)), self.is_markup());
}

template <bool from_right>
Result<Value> split_method(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(const auto separator, optional_text(arguments, 0));
  int64_t limit = -1;
  if (arguments.has(1)) {
    MORACLE_TRY(limit, arguments.integer(1));
  }
  MORACLE_TRY(Values parts, split_text(heap, source(self), separator, limit, from_right));
  return heap.list(std::move(parts));
}

Result<Value> splitlines_method(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(Values lines, split_lines(heap, source(self), arguments.flag(0)));
  return heap.list(std::move(lines));
}

// startswith and endswith accept one str or a tuple of str.
template <bool at_end>
Result<Value> affix_method(Heap&, const Value& self, const BoundArguments& arguments) {
  const Value& affix = arguments[0];
  const auto matches = [&](const Value& part) {
    return at_end ? self.text().ends_with(part.text()) : self.text().starts_with(part.text());
  };
  if (affix.is_text()) return Value(matches(affix));
  const Sequence* choices = affix.sequence();
  if (!choices || choices->kind != SequenceKind::kTuple) {
    return type_error(str("a '", type_name(affix), "' where a str or a tuple is needed"));
  }
  for (const Value& choice : choices->items) {
    if (!choice.is_text()) return type_error("a tuple with items that are not str");
    if (matches(choice)) return Value(true);
  }
  return Value(false);
}

template <bool at_end>
Result<Value> remove_method(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(const std::string_view part, arguments.text(0));
  std::string_view text = self.text();
  if (at_end && text.ends_with(part)) text.remove_suffix(part.size());
  if (!at_end && text.starts_with(part)) text.remove_prefix(part.size());
  return heap.text(std::string(text), self.is_markup());
}

template <Case to>
Result<Value> case_method(Heap& heap, const Value& self, const BoundArguments&) {
  return cased(heap, source(self), to);
}

Result<Value> capitalize_method(Heap& heap, const Value& self, const BoundArguments&) {
  return capitalized(heap, source(self));
}

Result<Value> title_method(Heap& heap, const Value& self, const BoundArguments&) {
  return titled(heap, source(self));
}

Result<Value> replace_method(Heap& heap, const Value& self, const BoundArguments& arguments) {
  if (self.is_markup()) return unsupported("'.replace()' of the result of the filter 'safe'");
  MORACLE_TRY(const std::string_view from, arguments.text(0));
  MORACLE_TRY(const std::string_view to, arguments.text(1));
  int64_t count = -1;
  if (arguments.has(2)) {
    MORACLE_TRY(count, arguments.integer(2));
  }
  return replaced(heap, self.text(), from, to, count);
}

enum class Missing { kMinusOne, kError };
template <bool from_right, Missing missing>
Result<Value> find_method(Heap& heap, const Value& self, const BoundArguments& arguments) {
  if (arguments.has(1)) return unsupported("'.find()' with a start");
  MORACLE_TRY(const std::string_view part, arguments.text(0));
  MORACLE_TRY(size_t at, find_text(heap.budget(), self.text(), part));
  if (from_right && at != std::string_view::npos) at = self.text().rfind(part);
  if (at == std::string_view::npos) {
    if (missing == Missing::kError) return type_error("'index' of text that is not there");
    return Value(int64_t{-1});
  }
  return Value(static_cast<int64_t>(count_code_points(self.text().substr(0, at))));
}

Result<Value> count_method(Heap& heap, const Value& self, const BoundArguments& arguments) {
  if (arguments.has(1)) return unsupported("'.count()' with a start");
  MORACLE_TRY(const std::string_view part, arguments.text(0));
  if (part.empty()) return Value(static_cast<int64_t>(count_code_points(self.text()) + 1));
  MORACLE_TRY(size_t at, find_text(heap.budget(), self.text(), part));
  int64_t count = 0;
  for (; at != std::string_view::npos; at = self.text().find(part, at + part.size())) ++count;
  return Value(count);
}

Result<Value> join_method(Heap& heap, const Value& self, const BoundArguments& arguments) {
  if (self.is_markup()) return unsupported("'.join()' of the result of the filter 'safe'");
  MORACLE_TRY(const Values items, elements(heap, arguments[0]));
  Writer out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_text()) return type_error(str("'.join()' of a '", type_name(items[i]), "'"));
    if (i > 0) out.add(self.text());
    out.add(items[i].text());
  }
  MORACLE_TRY(std::string text, std::move(out).take());
  return heap.text(std::move(text));
}

template <bool from_right>
Result<Value> partition_method(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(const std::string_view part, arguments.text(0));
  if (part.empty()) return type_error("an empty separator");
  MORACLE_TRY(size_t at, find_text(heap.budget(), self.text(), part));
  const std::string_view text = self.text();
  std::string_view parts[3] = {text, "", ""};
  if (at != text.npos) {
    if (from_right) at = text.rfind(part);
    parts[0] = text.substr(0, at);
    parts[1] = part;
    parts[2] = text.substr(at + part.size());
  } else if (from_right) {
    std::swap(parts[0], parts[2]);
  }
  Values values;
  for (std::string_view each : parts) {
    MORACLE_TRY(Value value, heap.text(std::string(each), self.is_markup()));
    values.push_back(std::move(value));
  }
  return heap.sequence(SequenceKind::kTuple, std::move(values));
}

Result<Value> isspace_method(Heap&, const Value& self, const BoundArguments&) {
  return Value(!self.text().empty() && strip(self.text(), Side::kLeft).empty());
}

constexpr Function kMethods[] = {
    {"strip", 0, "chars", &strip_method<Side::kBoth>},
    {"lstrip", 0, "chars", &strip_method<Side::kLeft>},
    {"rstrip", 0, "chars", &strip_method<Side::kRight>},
    {"split", 0, "sep maxsplit", &split_method<false>},
    {"rsplit", 0, "sep maxsplit", &split_method<true>},
    {"splitlines", 0, "keepends", &splitlines_method},
    {"startswith", 1, "prefix", &affix_method<false>},
    {"endswith", 1, "suffix", &affix_method<true>},
    {"removeprefix", 1, "prefix", &remove_method<false>},
    {"removesuffix", 1, "suffix", &remove_method<true>},
    {"upper", 0, "", &case_method<Case::kUpper>},
    {"lower", 0, "", &case_method<Case::kLower>},
    {"capitalize", 0, "", &capitalize_method},
    {"title", 0, "", &title_method},
    {"replace", 2, "old new count", &replace_method},
    {"find", 1, "sub start end", &find_method<false, Missing::kMinusOne>},
    {"rfind", 1, "sub start end", &find_method<true, Missing::kMinusOne>},
    {"index", 1, "sub start end", &find_method<false, Missing::kError>},
    {"count", 1, "sub start end", &count_method},
    {"join", 1, "iterable", &join_method},
    {"partition", 1, "sep", &partition_method<false>},
    {"rpartition", 1, "sep", &partition_method<true>},
    {"isspace", 0, "", &isspace_method},
    {"format", 0, "*", &format_method},
};

}  // namespace

std::span<const Function> string_methods() {
  return kMethods;
}

}  // namespace moracle::jinja
