// Filters that return text.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "text/jinja/library/filters.h"
#include "text/jinja/library/json_text.h"
#include "text/jinja/library/percent_format.h"
#include "text/jinja/values/compare.h"
#include "text/jinja/values/python_text.h"
#include "text/jinja/values/text_operations.h"

namespace moracle::jinja {

namespace {

// Input of a text filter: str(value), with the "safe" flag kept.
struct Input {
  std::string text;
  bool markup;
  operator Source() const { return {text, markup}; }
};
Result<Input> input_of(const Value& self) {
  MORACLE_TRY(std::string text, to_text(self));
  return Input{std::move(text), self.is_markup()};
}

template <Case to>
Result<Value> case_filter(Heap& heap, const Value& self, const BoundArguments&) {
  MORACLE_TRY(const Input input, input_of(self));
  return cased(heap, input, to);
}

Result<Value> capitalize_filter(Heap& heap, const Value& self, const BoundArguments&) {
  MORACLE_TRY(const Input input, input_of(self));
  return capitalized(heap, input);
}

// Unlike str.title(), words start only after white space and opening brackets or hyphens.
Result<Value> title_filter(Heap& heap, const Value& self, const BoundArguments&) {
  MORACLE_TRY(const Input input, input_of(self));
  std::string out;
  bool starts = true;
  for (size_t at = 0; at < input.text.size();) {
    const CodePoint c = code_point(input.text, at);
    const std::string_view bytes = std::string_view(input.text).substr(at, c.bytes);
    const auto changed = change_case(bytes, starts ? Case::kUpper : Case::kLower);
    if (!changed) return unsupported("a case mapping of one character to several");
    out += *changed;
    starts = is_space(c.value) || std::string_view("-({[<").find(bytes) != std::string_view::npos;
    at += c.bytes;
  }
  return heap.text(std::move(out));
}

Result<Value> trim_filter(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(const Input input, input_of(self));
  std::optional<std::string_view> chars;
  if (arguments.some(0)) {
    MORACLE_TRY(chars, arguments.text(0));
    MORACLE_CHECK(find_text(heap.budget(), input.text, *chars));
  }
  return heap.text(std::string(strip(input.text, Side::kBoth, chars)), input.markup);
}

Result<Value> string_filter(Heap& heap, const Value& self, const BoundArguments&) {
  if (self.is_text()) return self;
  MORACLE_TRY(std::string text, to_text(self));
  return heap.text(std::move(text));
}

Result<Value> safe_filter(Heap& heap, const Value& self, const BoundArguments&) {
  MORACLE_TRY(std::string text, to_text(self));
  return heap.text(std::move(text), true);
}

Result<Value> replace_filter(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(const std::string text, to_text(self));
  MORACLE_TRY(const std::string from, to_text(arguments[0]));
  MORACLE_TRY(const std::string to, to_text(arguments[1]));
  int64_t count = -1;
  if (arguments.some(2)) {
    MORACLE_TRY(count, arguments.integer(2));
  }
  return replaced(heap, text, from, to, count);
}

Result<Value> join_filter(Heap& heap, const Value& self, const BoundArguments& arguments) {
  std::string separator;
  if (arguments.has(0)) {
    MORACLE_TRY(separator, to_text(arguments[0]));
  }
  MORACLE_TRY(const Values items, elements(heap, self));
  Writer out;
  for (size_t i = 0; i < items.size() && !out.full(); ++i) {
    if (i > 0) out.add(separator);
    Value item = items[i];
    if (arguments.some(1)) {
      MORACLE_TRY(item, get_path(heap, std::move(item), arguments[1]));
    }
    if (item.is_text()) {
      out.add(item.text());
    } else {
      MORACLE_TRY(const std::string text, to_text(item));
      MORACLE_CHECK(heap.budget().read(text.size()));
      out.add(text);
    }
  }
  MORACLE_TRY(std::string text, std::move(out).take());
  return heap.text(std::move(text));
}

Result<Value> indent_filter(Heap& heap, const Value& self, const BoundArguments& arguments) {
  if (self.is_markup()) return unsupported("'indent' of the result of the filter 'safe'");
  if (self.is_undefined()) return undefined_error(self);
  if (!self.is_text()) return type_error(str("'indent' of a '", type_name(self), "'"));
  std::string indent(4, ' ');
  if (arguments.has(0) && arguments[0].is_text()) {
    indent = arguments[0].text();
  } else if (arguments.has(0)) {
    MORACLE_TRY(const int64_t width, arguments.integer(0));
    if (width > static_cast<int64_t>(kMaxTextBytes)) return limit_error("a wide 'indent'");
    indent.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  const std::string text = std::string(self.text()) + "\n";
  MORACLE_TRY(const Values lines, split_lines(heap, {text}, false));
  Writer out;
  for (size_t i = 0; i < lines.size() && !out.full(); ++i) {
    if (i > 0) out.add("\n");
    const bool indents = i == 0 ? arguments.flag(1) : arguments.flag(2) || !lines[i].text().empty();
    if (indents) out.add(indent);
    out.add(lines[i].text());
  }
  MORACLE_TRY(std::string made, std::move(out).take());
  return heap.text(std::move(made));
}

Result<Value> tojson_filter(Heap& heap, const Value& self, const BoundArguments& arguments) {
  JsonStyle style;
  style.ensure_ascii = arguments.flag(0);
  style.sort_keys = arguments.flag(3);
  if (arguments.some(1)) {
    style.item_separator.pop_back();  // drops the space at the ends of lines
    if (arguments[1].is_text()) {
      style.indent = std::string(arguments[1].text());
    } else {
      MORACLE_TRY(const int64_t width, arguments.integer(1));
      if (width > static_cast<int64_t>(kMaxTextBytes)) return limit_error("a wide indent");
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
  }
  if (arguments.some(2)) {
    const Sequence* pair = arguments[2].sequence();
    if (!pair || pair->items.size() != 2 || !pair->items[0].is_text() ||
        !pair->items[1].is_text()) {
      return type_error("separators that are no pair of str");
    }
    style.item_separator = pair->items[0].text();
    style.key_separator = pair->items[1].text();
  }
  MORACLE_TRY(std::string text, to_json(heap, self, style));
  return heap.text(std::move(text));
}

Result<Value> format_filter(Heap& heap, const Value& self, const BoundArguments& arguments) {
  if (self.is_undefined()) return undefined_error(self);
  return percent_format(heap, self, arguments.raw());
}

constexpr Function kTextFilters[] = {
    {"format", 0, "*", &format_filter},
    {"upper", 0, "", &case_filter<Case::kUpper>},
    {"lower", 0, "", &case_filter<Case::kLower>},
    {"capitalize", 0, "", &capitalize_filter},
    {"title", 0, "", &title_filter},
    {"trim", 0, "chars", &trim_filter},
    {"string", 0, "", &string_filter},
    {"safe", 0, "", &safe_filter},
    {"replace", 2, "old new count", &replace_filter},
    {"join", 0, "d attribute", &join_filter},
    {"indent", 0, "width first blank", &indent_filter},
    {"tojson", 0, "ensure_ascii indent separators sort_keys", &tojson_filter},
};

}  // namespace

std::span<const Function> text_filters() {
  return kTextFilters;
}

}  // namespace moracle::jinja
