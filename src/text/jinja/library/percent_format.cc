#include "text/jinja/library/percent_format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/text.h"
#include "base/try.h"
#include "text/jinja/values/python_text.h"

namespace moracle::jinja {

namespace {

constexpr int kMostWidth = 100;  // of a number or a text; also the largest precision

struct Conversion {
  std::string name;  // empty: the next argument
  std::string flags;
  int width = 0;
  std::optional<int> precision;
  char letter = 0;
};

// Reads one conversion behind its '%'.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Result<Conversion> read() {
    Conversion found;
    if (take('(')) {
      while (at_ < text_.size() && text_[at_] != ')') found.name += text_[at_++];
      if (!take(')')) return type_error("'format' with a name that does not end");
    }
    while (at_ < text_.size() && std::string_view("0-+").find(text_[at_]) != std::string_view::npos)
      found.flags += text_[at_++];
    MORACLE_TRY(found.width, number());
    if (take('.')) {
      MORACLE_TRY(found.precision, number());
    }
    if (at_ == text_.size()) return type_error("'format' of an incomplete format");
    found.letter = text_[at_++];
    return found;
  }
  size_t size() const { return at_; }

 private:
  bool take(char c) {
    const bool there = at_ < text_.size() && text_[at_] == c;
    at_ += there ? 1 : 0;
    return there;
  }
  Result<int> number() {
    int value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      value = value * 10 + (text_[at_++] - '0');
      if (value > kMostWidth) return unsupported(str("'format' wider than ", kMostWidth));
    }
    return value;
  }
  std::string_view text_;
  size_t at_ = 0;
};

Result<std::string> shown_number(const Conversion& how, const Value& value) {
  const std::optional<double> number = value.number();
  if (!number) return type_error(str("'format' of a '", type_name(value), "' as a number"));
  char text[512];
  const std::string flags = "%" + how.flags;
  if (how.letter == 'f') {
    if (std::fabs(*number) > 1e300) return unsupported("'format' of a number above 1e300");
    std::snprintf(text, sizeof text, (flags + "*.*f").c_str(), how.width, how.precision.value_or(6),
                  *number);
    return std::string(text);
  }
  if (how.precision) return unsupported("'format' of an integer with a precision");
  std::optional<int64_t> integer = value.integer();
  if (!integer) {
    if (!(std::fabs(*number) < 9.2e18)) return unsupported("'format' of an integer beyond 64 bits");
    integer = static_cast<int64_t>(*number);
  }
  std::snprintf(text, sizeof text, (flags + "*lld").c_str(), how.width,
                static_cast<long long>(*integer));
  return std::string(text);
}

Result<std::string> shown(const Conversion& how, const Value& value) {
  if (how.letter != 's') return shown_number(how, value);
  if (how.precision) return unsupported("'format' of a str with a precision");
  MORACLE_TRY(std::string text, to_text(value));
  // The width counts characters: bytes that continue a character do not count.
  const auto size = std::count_if(text.begin(), text.end(),
                                  [](char c) { return (static_cast<unsigned char>(c) >> 6) != 2; });
  if (size >= how.width) return text;
  const std::string space(static_cast<size_t>(how.width - size), ' ');
  return how.flags.find('-') == std::string::npos ? space + text : text + space;
}

}  // namespace

Result<Value> percent_format(Heap& heap, const Value& self, const Arguments& arguments) {
  if (self.is_markup()) return unsupported("'format' of the result of the filter 'safe'");
  if (!arguments.positional.empty() && !arguments.named.empty())
    return type_error("'format' with arguments of both kinds");
  MORACLE_TRY(const std::string text, to_text(self));
  size_t next = 0;
  Writer out;
  for (size_t at = 0; at < text.size() && !out.full();) {
    const size_t percent = std::min(text.find('%', at), text.size());
    out.add(std::string_view(text).substr(at, percent - at));
    if (percent == text.size()) break;
    Reader reader(std::string_view(text).substr(percent + 1));
    MORACLE_TRY(const Conversion how, reader.read());
    at = percent + 1 + reader.size();
    if (how.letter == '%') {
      out.add("%");
      continue;
    }
    if (std::string_view("sdif").find(how.letter) == std::string_view::npos)
      return unsupported(str("'format' with '%", std::string(1, how.letter), "'"));
    const Value* value = nullptr;
    if (how.name.empty()) {
      if (next == arguments.positional.size()) return type_error("'format' of too few arguments");
      value = &arguments.positional[next++];
    } else {
      for (const auto& [name, given] : arguments.named) {
        if (name == how.name) value = &given;
      }
      if (value == nullptr) return type_error(str("'format' without an argument '", how.name, "'"));
    }
    MORACLE_TRY(const std::string made, shown(how, *value));
    MORACLE_CHECK(heap.budget().read(made.size()));
    out.add(made);
  }
  if (next != arguments.positional.size()) return type_error("'format' of too many arguments");
  MORACLE_TRY(std::string made, std::move(out).take());
  return heap.text(std::move(made));
}

}  // namespace moracle::jinja
