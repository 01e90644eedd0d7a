// Filters that return numbers.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/text.h"
#include "base/try.h"
#include "text/jinja/library/filters.h"
#include "text/jinja/values/arithmetic.h"
#include "text/jinja/values/unicode.h"

namespace moracle::jinja {

namespace {

// float(text) and int(text) of Python, for numbers written in ASCII.
template <class T>
std::optional<T> parse(std::string_view text) {
  text = strip(text, Side::kBoth);
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '9';
    };
    if (text[i] != '_') {
      digits += text[i];
    } else if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) {
      return std::nullopt;
    }
  }
  T number{};
  const char* end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, number);
  // from_chars also accepts "nan(...)"; Python does not.
  if (read.ec != std::errc() || read.ptr != end || text.find('(') != text.npos) return std::nullopt;
  return number;
}

// int(number); empty for inf and nan.
Result<std::optional<int64_t>> truncated(double number) {
  if (!std::isfinite(number)) return std::optional<int64_t>();
  if (std::fabs(number) >= 9.2e18) return limit_error("an integer beyond 64 bits");
  return std::optional<int64_t>(static_cast<int64_t>(number));
}

Result<Value> int_filter(Heap&, const Value& self, const BoundArguments& arguments) {
  if (arguments.has(1)) return unsupported("'int' with a base");
  if (self.is_undefined()) return undefined_error(self);
  if (const auto integer = self.integer()) return Value(*integer);
  std::optional<int64_t> result;
  std::optional<double> real = self.number();
  if (self.is_text()) {
    result = parse<int64_t>(self.text());
    if (!result) real = parse<double>(self.text());
  }
  if (real) {
    MORACLE_TRY(result, truncated(*real));
  }
  if (result) return Value(*result);
  return arguments.has(0) ? arguments[0] : Value(int64_t{0});
}

Result<Value> float_filter(Heap&, const Value& self, const BoundArguments& arguments) {
  if (self.is_undefined()) return undefined_error(self);
  if (const auto number = self.number()) return Value(*number);
  if (self.is_text()) {
    if (const auto number = parse<double>(self.text())) return Value(*number);
  }
  return arguments.has(0) ? arguments[0] : Value(0.0);
}

Result<Value> abs_filter(Heap&, const Value& self, const BoundArguments&) {
  if (self.is_undefined()) return undefined_error(self);
  if (!self.number()) return type_error(str("'abs' of a '", type_name(self), "'"));
  return apply_sign(std::signbit(*self.number()) ? "-" : "+", self);
}

// As Python's round(): round the exact decimal value, ties to even, as printf does.
Result<Value> round_filter(Heap&, const Value& self, const BoundArguments& arguments) {
  if (self.is_undefined()) return undefined_error(self);
  if (!self.number()) return type_error(str("'round' of a '", type_name(self), "'"));
  int64_t precision = 0;
  std::string_view method = "common";
  if (arguments.has(0)) {
    MORACLE_TRY(precision, arguments.integer(0));
  }
  if (arguments.has(1)) {
    MORACLE_TRY(method, arguments.text(1));
  }
  if (precision < 0 || precision > 22) return unsupported("'round' to such a precision");
  const double number = *self.number();
  if (method == "common") {
    if (const auto integer = self.integer()) return Value(*integer);
    if (!std::isfinite(number)) return self;
    char text[400];
    std::snprintf(text, sizeof text, "%.*f", static_cast<int>(precision), number);
    return Value(std::strtod(text, nullptr));
  }
  if (method != "ceil" && method != "floor")
    return type_error("'round' with a method other than common, ceil or floor");
  if (!std::isfinite(number)) return type_error("'round' of inf or nan");
  const double scale = std::pow(10.0, static_cast<double>(precision)), scaled = number * scale;
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Result<Value> sum_filter(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(const Values items, elements(heap, self));
  Value total = arguments.has(1) ? arguments[1] : Value(int64_t{0});
  if (total.is_text()) return type_error("'sum' of str");
  for (Value item : items) {
    if (arguments.some(0)) {
      MORACLE_TRY(item, get_path(heap, std::move(item), arguments[0]));
    }
    MORACLE_TRY(total, calculate(heap, "+", total, item));
  }
  return total;
}

constexpr Function kNumberFilters[] = {
    {"int", 0, "default base", &int_filter},
    {"float", 0, "default", &float_filter},
    {"abs", 0, "", &abs_filter},
    {"round", 0, "precision method", &round_filter},
    {"sum", 0, "attribute start", &sum_filter},
};

}  // namespace

std::span<const Function> number_filters() {
  return kNumberFilters;
}

}  // namespace moracle::jinja
