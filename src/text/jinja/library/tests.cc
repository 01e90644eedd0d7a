#include "text/jinja/library/tests.h"

#include "base/try.h"
#include "text/jinja/values/arithmetic.h"
#include "text/jinja/values/compare.h"

namespace moracle::jinja {

namespace {

bool is_integer(const Value& v) {
  return v.is<int64_t>();
}
bool is_boolean(const Value& v) {
  return v.is<bool>();
}
bool is_true(const Value& v) {
  return v.is<bool>() && truth(v);
}
bool is_false(const Value& v) {
  return v.is<bool>() && !truth(v);
}
bool is_float(const Value& v) {
  return v.is<double>();
}
bool is_number(const Value& v) {
  return v.number().has_value();
}
bool is_defined(const Value& v) {
  return !v.is_undefined();
}
bool is_undefined(const Value& v) {
  return v.is_undefined();
}
bool is_none(const Value& v) {
  return v.is_none();
}
bool is_string(const Value& v) {
  return v.is_text();
}
bool is_mapping(const Value& v) {
  return v.mapping() != nullptr;
}
bool is_sequence(const Value& v) {
  return v.is_text() || v.mapping() || v.is_undefined() ||
         (v.sequence() && v.sequence()->indexable());
}
bool is_iterable(const Value& v) {
  return v.is_text() || v.mapping() || v.is_undefined() || v.sequence() || v.is<Loop*>();
}
bool is_callable(const Value& v) {
  return v.is_undefined() || v.is<const Macro*>() || v.is<const Function*>() || v.is<Loop*>() ||
         v.is<std::shared_ptr<const Method>>();
}

template <bool (*property)(const Value&)>
Result<Value> plain(Heap&, const Value& self, const BoundArguments&) {
  return Value(property(self));
}

template <bool wanted>
Result<Value> equality(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(const bool same, equal(heap.budget(), self, arguments[0]));
  return Value(same == wanted);
}

template <Order order>
Result<Value> ordering(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(const bool holds, ordered(heap.budget(), order, self, arguments[0]));
  return Value(holds);
}

Result<Value> is_in(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(const bool found, contains(heap.budget(), arguments[0], self));
  return Value(found);
}

Result<Value> remainder_is(Heap& heap, const Value& self, int64_t divisor, int64_t wanted) {
  if (self.is_text()) return type_error("a numeric test of a 'str'");
  MORACLE_TRY(const Value rest, calculate(heap, "%", self, Value(divisor)));
  return Value(rest.number() && *rest.number() == static_cast<double>(wanted));
}

Result<Value> is_odd(Heap& heap, const Value& self, const BoundArguments&) {
  return remainder_is(heap, self, 2, 1);
}
Result<Value> is_even(Heap& heap, const Value& self, const BoundArguments&) {
  return remainder_is(heap, self, 2, 0);
}
Result<Value> is_divisible(Heap& heap, const Value& self, const BoundArguments& arguments) {
  MORACLE_TRY(const int64_t divisor, arguments.integer(0));
  return remainder_is(heap, self, divisor, 0);
}

constexpr Function kTests[] = {
    {"defined", 0, "", &plain<is_defined>},
    {"undefined", 0, "", &plain<is_undefined>},
    {"none", 0, "", &plain<is_none>},
    {"boolean", 0, "", &plain<is_boolean>},
    {"true", 0, "", &plain<is_true>},
    {"false", 0, "", &plain<is_false>},
    {"integer", 0, "", &plain<is_integer>},
    {"float", 0, "", &plain<is_float>},
    {"number", 0, "", &plain<is_number>},
    {"string", 0, "", &plain<is_string>},
    {"mapping", 0, "", &plain<is_mapping>},
    {"sequence", 0, "", &plain<is_sequence>},
    {"iterable", 0, "", &plain<is_iterable>},
    {"callable", 0, "", &plain<is_callable>},
    {"odd", 0, "", &is_odd},
    {"even", 0, "", &is_even},
    {"divisibleby", 1, "num", &is_divisible},
    {"in", 1, "seq", &is_in},
    {"equalto", 1, "other", &equality<true>},
    {"eq", 1, "other", &equality<true>},
    {"==", 1, "other", &equality<true>},
    {"ne", 1, "other", &equality<false>},
    {"!=", 1, "other", &equality<false>},
    {"lt", 1, "other", &ordering<Order::kLess>},
    {"lessthan", 1, "other", &ordering<Order::kLess>},
    {"<", 1, "other", &ordering<Order::kLess>},
    {"le", 1, "other", &ordering<Order::kLessEqual>},
    {"<=", 1, "other", &ordering<Order::kLessEqual>},
    {"gt", 1, "other", &ordering<Order::kGreater>},
    {"greaterthan", 1, "other", &ordering<Order::kGreater>},
    {">", 1, "other", &ordering<Order::kGreater>},
    {"ge", 1, "other", &ordering<Order::kGreaterEqual>},
    {">=", 1, "other", &ordering<Order::kGreaterEqual>},
};

}  // namespace

const Function* find_test(std::string_view name) {
  return find_function(kTests, name);
}

bool lacks_test(std::string_view name) {
  return name == "filter" || name == "test" || name == "lower" || name == "upper" ||
         name == "sameas" || name == "escaped";
}

}  // namespace moracle::jinja
