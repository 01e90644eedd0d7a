#include "base/text.h"
#include "base/try.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/subscript.h"
#include "text/jinja/values/arithmetic.h"
#include "text/jinja/values/python_text.h"

namespace moracle::jinja {

Result<Value> Interpreter::evaluate(const Expr& expr, Scope& scope) {
  MORACLE_CHECK(heap_.budget().spend(1));
  MORACLE_CHECK(enter(1));
  Result<Value> value = dispatch(expr, scope);
  leave(1);
  if (value || !value.error().place.empty()) return value;
  Error error = std::move(value).error();
  error.place = str("line ", expr.line);
  return error;
}

Result<Value> Interpreter::dispatch(const Expr& expr, Scope& scope) {
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.value;
    case ExprKind::kName:
    case ExprKind::kNamespaceAttribute:
      return look_up(expr, scope);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return evaluate_list(expr, scope);
    case ExprKind::kDict:
      return evaluate_dict(expr, scope);
    case ExprKind::kSlice:
      return evaluate_slice(expr, scope);
    case ExprKind::kCall:
      return evaluate_call(expr, scope);
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return evaluate_function(expr, scope);
    case ExprKind::kCompare:
      return evaluate_compare(expr, scope);
    case ExprKind::kConcat:
      return evaluate_concat(expr, scope);
    case ExprKind::kCondition:
      return evaluate_condition(expr, scope);
    default:
      break;
  }
  // All other kinds evaluate their first operand first.
  MORACLE_TRY(Value first, evaluate(*expr.items[0], scope));
  switch (expr.kind) {
    case ExprKind::kAttribute:
      return get_attribute(heap_, first, expr.name);
    case ExprKind::kNot:
      return Value(!truth(first));
    case ExprKind::kUnary:
      return apply_sign(expr.name, first);
    case ExprKind::kAnd:
    case ExprKind::kOr:
      if (truth(first) == (expr.kind == ExprKind::kOr)) return first;
      return evaluate(*expr.items[1], scope);
    default:
      break;
  }
  MORACLE_TRY(const Value second, evaluate(*expr.items[1], scope));
  if (expr.kind == ExprKind::kItem) return get_item(heap_, first, second);
  return calculate(heap_, expr.name, first, second);
}

Result<Value> Interpreter::look_up(const Expr& expr, const Scope& scope) {
  int64_t scopes = 0;
  for (const Scope* s = &scope; s; s = s->parent, ++scopes) {
    const auto found = s->variables.find(expr.name);
    if (found == s->variables.end()) continue;
    MORACLE_CHECK(heap_.budget().spend(scopes));
    return found->second;
  }
  MORACLE_CHECK(heap_.budget().spend(scopes));
  return undefined(str("'", expr.name, "' is undefined"));
}

Result<Value> Interpreter::evaluate_list(const Expr& expr, Scope& scope) {
  Values items;
  for (const ExprPtr& item : expr.items) {
    MORACLE_TRY(Value value, evaluate(*item, scope));
    items.push_back(std::move(value));
  }
  const bool list = expr.kind == ExprKind::kList;
  return heap_.sequence(list ? SequenceKind::kList : SequenceKind::kTuple, std::move(items));
}

Result<Value> Interpreter::evaluate_dict(const Expr& expr, Scope& scope) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < expr.items.size(); i += 2) {
    MORACLE_TRY(Value key, evaluate(*expr.items[i], scope));
    MORACLE_TRY(Value value, evaluate(*expr.items[i + 1], scope));
    entries.emplace_back(std::move(key), std::move(value));
  }
  return heap_.mapping(std::move(entries));
}

Result<Value> Interpreter::evaluate_slice(const Expr& expr, Scope& scope) {
  MORACLE_TRY(const Value value, evaluate(*expr.items[0], scope));
  Value bounds[3];
  const Value* given[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    if (!expr.items[i + 1]) continue;
    MORACLE_TRY(bounds[i], evaluate(*expr.items[i + 1], scope));
    given[i] = &bounds[i];
  }
  return get_slice(heap_, value, given[0], given[1], given[2]);
}

Result<Value> Interpreter::evaluate_function(const Expr& expr, Scope& scope) {
  if (!expr.function) {
    const bool filter = expr.kind == ExprKind::kFilter;
    return unsupported(str(filter ? "the filter '" : "the test '", expr.name, "'"));
  }
  Value self;
  if (expr.items[0]) {
    MORACLE_TRY(self, evaluate(*expr.items[0], scope));
  } else {
    self = block_input_;
  }
  MORACLE_TRY(Arguments arguments, arguments_of(expr, scope));
  return invoke(heap_, *expr.function, self, std::move(arguments));
}

Result<Value> Interpreter::evaluate_filters(const Expr& chain, Value input, Scope& scope) {
  // The innermost filter reads this value before any other code can overwrite it.
  block_input_ = std::move(input);
  return evaluate(chain, scope);
}

Result<Value> Interpreter::evaluate_compare(const Expr& expr, Scope& scope) {
  MORACLE_TRY(Value left, evaluate(*expr.items[0], scope));
  for (size_t i = 0; i < expr.comparisons.size(); ++i) {
    MORACLE_TRY(Value right, evaluate(*expr.items[i + 1], scope));
    Budget& budget = heap_.budget();
    bool holds = false;
    switch (expr.comparisons[i]) {
      case Comparison::kEqual:
      case Comparison::kNotEqual: {
        MORACLE_TRY(holds, equal(budget, left, right));
        holds = holds == (expr.comparisons[i] == Comparison::kEqual);
        break;
      }
      case Comparison::kIn:
      case Comparison::kNotIn: {
        MORACLE_TRY(holds, contains(budget, right, left));
        holds = holds == (expr.comparisons[i] == Comparison::kIn);
        break;
      }
      case Comparison::kLess: {
        MORACLE_TRY(holds, ordered(budget, Order::kLess, left, right));
        break;
      }
      case Comparison::kLessEqual: {
        MORACLE_TRY(holds, ordered(budget, Order::kLessEqual, left, right));
        break;
      }
      case Comparison::kGreater: {
        MORACLE_TRY(holds, ordered(budget, Order::kGreater, left, right));
        break;
      }
      case Comparison::kGreaterEqual: {
        MORACLE_TRY(holds, ordered(budget, Order::kGreaterEqual, left, right));
        break;
      }
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Interpreter::evaluate_concat(const Expr& expr, Scope& scope) {
  Writer out;
  for (const ExprPtr& item : expr.items) {
    MORACLE_TRY(const Value value, evaluate(*item, scope));
    MORACLE_CHECK(print(value, out));
  }
  MORACLE_TRY(std::string text, std::move(out).take());
  return heap_.text(std::move(text));
}

Result<Value> Interpreter::evaluate_condition(const Expr& expr, Scope& scope) {
  MORACLE_TRY(const Value holds, evaluate(*expr.items[1], scope));
  if (truth(holds)) return evaluate(*expr.items[0], scope);
  if (expr.items[2]) return evaluate(*expr.items[2], scope);
  return undefined("the inline if-expression evaluated to false and no else section was defined");
}

}  // namespace moracle::jinja
