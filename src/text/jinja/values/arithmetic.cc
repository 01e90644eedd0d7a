#include "text/jinja/values/arithmetic.h"

#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "text/jinja/values/escape.h"

namespace moracle::jinja {

namespace {

Error too_big() {
  return limit_error("an integer beyond 64 bits");
}
Error division_by_zero() {
  return type_error("a division by zero");
}

Result<Value> integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return division_by_zero();
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return too_big();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return too_big();
  }
  return Value(result);
}

// As in Python: round towards minus infinity.
Result<Value> integer_division(int64_t a, int64_t b, bool remainder) {
  if (b == 0) return division_by_zero();
  if (b == -1) {
    if (remainder) return Value(int64_t{0});
    int64_t result = 0;
    if (__builtin_sub_overflow(int64_t{0}, a, &result)) return too_big();
    return Value(result);
  }
  int64_t quotient = a / b;
  int64_t rest = a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
    --quotient;
  }
  return Value(remainder ? rest : quotient);
}

Result<Value> integers(char sign, bool twice, int64_t a, int64_t b) {
  int64_t result = 0;
  if (sign == '+') return __builtin_add_overflow(a, b, &result) ? too_big() : Result<Value>(result);
  if (sign == '-') return __builtin_sub_overflow(a, b, &result) ? too_big() : Result<Value>(result);
  if (sign == '%') return integer_division(a, b, true);
  if (sign == '*' && twice) return integer_power(a, b);
  if (sign == '*') return __builtin_mul_overflow(a, b, &result) ? too_big() : Result<Value>(result);
  if (twice) return integer_division(a, b, false);
  if (b == 0) return division_by_zero();
  return Value(static_cast<double>(a) / static_cast<double>(b));
}

Result<Value> floats(char sign, bool twice, double a, double b) {
  if (sign == '+') return Value(a + b);
  if (sign == '-') return Value(a - b);
  if (sign == '*' && twice) {
    const double result = std::pow(a, b);
    if (a == 0 && b < 0) return division_by_zero();
    if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) {
      return unsupported("a complex number");
    }
    if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) {
      return type_error("a power that is too large");
    }
    return Value(result);
  }
  if (sign == '*') return Value(a * b);
  if (b == 0) return division_by_zero();
  if (sign == '/' && !twice) return Value(a / b);
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
    quotient -= 1;
  }
  if (sign == '%') return Value(rest != 0 ? rest : std::copysign(0.0, b));
  return Value(quotient != 0 ? std::round(quotient) : std::copysign(0.0, a / b));
}

Result<Value> repeat(Heap& heap, const Value& value, int64_t times) {
  const auto count = static_cast<size_t>(times < 0 ? 0 : times);
  if (value.is_text()) {
    const std::string_view text = value.text();
    if (!text.empty() && count > kMaxTextBytes / text.size()) {
      return limit_error("a str repeated too often");
    }
    std::string out;
    out.reserve(text.size() * count);
    for (size_t i = 0; i < count && !text.empty(); ++i) out += text;
    return heap.text(std::move(out), value.is_markup());
  }
  const Values& items = value.sequence()->items;
  if (!items.empty() && count > kMaxTextBytes / sizeof(Value) / items.size()) {
    return limit_error("a list repeated too often");
  }
  Values out;
  for (size_t i = 0; i < count && !items.empty(); ++i) {
    out.insert(out.end(), items.begin(), items.end());
  }
  return heap.sequence(value.sequence()->kind, std::move(out));
}

bool repeatable(const Value& value) {
  return value.is_text() || (value.sequence() && value.sequence()->kind <= SequenceKind::kTuple);
}

Result<Value> add_lists(Heap& heap, const Sequence& left, const Sequence& right) {
  Values items;
  MORACLE_CHECK(heap.budget().create((left.items.size() + right.items.size()) * sizeof(Value)));
  items.reserve(left.items.size() + right.items.size());
  items.insert(items.end(), left.items.begin(), left.items.end());
  items.insert(items.end(), right.items.begin(), right.items.end());
  return heap.sequence(left.kind, std::move(items));
}

}  // namespace

Result<Value> calculate(Heap& heap, std::string_view sign, const Value& left, const Value& right) {
  const bool twice = sign.size() == 2;
  if (left.is_undefined()) return undefined_error(left);
  if (right.is_undefined()) return undefined_error(right);
  if (left.integer() && right.integer()) {
    return integers(sign[0], twice, *left.integer(), *right.integer());
  }
  if (left.number() && right.number()) {
    return floats(sign[0], twice, *left.number(), *right.number());
  }
  if (left.is_text() && sign == "%") return unsupported("'%' with a str on its left");
  if (sign == "+" && left.is_text() && right.is_text()) {
    return add_texts(heap, {left.text(), left.is_markup()}, {right.text(), right.is_markup()});
  }
  const Sequence* a = left.sequence();
  const Sequence* b = right.sequence();
  if (sign == "+" && a && b && a->kind == b->kind && a->kind <= SequenceKind::kTuple) {
    return add_lists(heap, *a, *b);
  }
  if (sign == "*" && repeatable(left) && right.integer()) {
    return repeat(heap, left, *right.integer());
  }
  if (sign == "*" && repeatable(right) && left.integer()) {
    return repeat(heap, right, *left.integer());
  }
  return type_error(
      str("'", sign, "' of a '", type_name(left), "' and a '", type_name(right), "'"));
}

Result<Value> apply_sign(std::string_view sign, const Value& value) {
  if (value.is_undefined()) return undefined_error(value);
  if (const auto i = value.integer()) {
    int64_t result = *i;
    if (sign == "-" && __builtin_sub_overflow(int64_t{0}, *i, &result)) return too_big();
    return Value(result);
  }
  if (const auto* d = value.as<double>()) return Value(sign == "-" ? -*d : *d);
  return type_error(str("'", sign, "' before a '", type_name(value), "'"));
}

}  // namespace moracle::jinja
