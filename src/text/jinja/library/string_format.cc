#include "text/jinja/library/string_format.h"

#include <algorithm>
#include <string>

#include "base/text.h"
#include "base/try.h"
#include "text/jinja/values/python_text.h"

namespace moracle::jinja {

namespace {

bool all_digits(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Picks the argument of each field in turn.
class Fields {
 public:
  explicit Fields(const Arguments& arguments) : arguments_(arguments) {}

  Result<Value> pick(std::string_view field) {
    for (char c : field) {
      if (c == '.' || c == '[' || c == ':' || c == '!' || c == '{') {
        return unsupported(str("'.format()' with the field '{", field, "}'"));
      }
    }
    if (!all_digits(field)) {
      for (const auto& [name, value] : arguments_.named) {
        if (name == field) return value;
      }
      return type_error(str("'.format()' without an argument '", field, "'"));
    }
    const bool counts = field.empty();
    if (counts ? numbered_ : next_ > 0) return type_error("'.format()' that mixes {} and {0}");
    numbered_ = numbered_ || !counts;
    size_t index = counts ? next_++ : 0;
    for (char c : field) index = std::min<size_t>(index * 10 + static_cast<size_t>(c - '0'), 1000);
    if (index >= arguments_.positional.size())
      return type_error("'.format()' of too few arguments");
    return arguments_.positional[index];
  }

 private:
  const Arguments& arguments_;
  size_t next_ = 0;
  bool numbered_ = false;
};

// A field is an argument's number or name. The suffix ":d" prints an int, or a bool as an int.
Result<std::string> field_text(Fields& fields, std::string_view field) {
  const bool decimal = field.ends_with(":d");
  if (decimal) field.remove_suffix(2);
  MORACLE_TRY(const Value value, fields.pick(field));
  if (!decimal) return to_text(value);
  if (const auto number = value.integer()) return std::to_string(*number);
  return type_error(str("'.format()' with ':d' of a '", type_name(value), "'"));
}

}  // namespace

Result<Value> format_method(Heap& heap, const Value& self, const BoundArguments& arguments) {
  if (self.is_markup()) return unsupported("'.format()' of the result of the filter 'safe'");
  const std::string_view text = self.text();
  Fields fields(arguments.raw());
  Writer out;
  for (size_t at = 0; at < text.size() && !out.full();) {
    const char c = text[at];
    if (c != '{' && c != '}') {
      const size_t end = std::min(text.find_first_of("{}", at), text.size());
      out.add(text.substr(at, end - at));
      at = end;
    } else if (at + 1 < text.size() && text[at + 1] == c) {
      out.add(text.substr(at, 1));
      at += 2;
    } else {
      const size_t end = text.find('}', at);
      if (c == '}' || end == text.npos) return type_error("'.format()' with a single brace");
      MORACLE_TRY(const std::string shown, field_text(fields, text.substr(at + 1, end - at - 1)));
      MORACLE_CHECK(heap.budget().read(shown.size()));
      out.add(shown);
      at = end + 1;
    }
  }
  MORACLE_TRY(std::string made, std::move(out).take());
  return heap.text(std::move(made));
}

}  // namespace moracle::jinja
