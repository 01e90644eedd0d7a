// Calls of macros, methods and functions.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/library/methods.h"

namespace moracle::jinja {

Result<Arguments> Interpreter::arguments_of(const Expr& expr, Scope& scope) {
  Arguments arguments;
  for (size_t i = 1; i < expr.items.size(); ++i) {
    MORACLE_TRY(Value value, evaluate(*expr.items[i], scope));
    arguments.positional.push_back(std::move(value));
  }
  for (const Keyword& keyword : expr.named) {
    MORACLE_TRY(Value value, evaluate(*keyword.value, scope));
    arguments.named.emplace_back(keyword.name, std::move(value));
  }
  return arguments;
}

Result<Value> Interpreter::evaluate_call(const Expr& expr, Scope& scope, const Macro* caller) {
  MORACLE_TRY(const Value callee, evaluate(*expr.items[0], scope));
  MORACLE_TRY(Arguments arguments, arguments_of(expr, scope));
  if (caller) arguments.named.emplace_back("caller", caller);
  if (const auto* macro = callee.as<const Macro*>()) {
    return call_macro(**macro, std::move(arguments));
  }
  if (const auto* function = callee.as<const Function*>()) {
    return invoke(heap_, **function, Value(), std::move(arguments));
  }
  if (const auto* method = callee.as<std::shared_ptr<const Method>>()) {
    if (const auto* loop = (*method)->self.as<Loop*>()) {
      return (*loop)->call(heap_, (*method)->name, arguments);
    }
    return call_method(heap_, **method, std::move(arguments));
  }
  if (callee.is_undefined()) return undefined_error(callee);
  return type_error(str("a call of a '", type_name(callee), "'"));
}

Result<Value> Interpreter::call_macro(const Macro& macro, Arguments arguments) {
  // A call uses more of the stack than other nodes.
  constexpr int kStackOfCall = 3;
  MORACLE_CHECK(enter(kStackOfCall));
  Block block(*this, *macro.scope);
  MORACLE_CHECK(bind_parameters(macro, std::move(arguments), *block));
  Writer out;
  MORACLE_CHECK(run(macro.stmt->body, *block, out));
  leave(kStackOfCall);
  MORACLE_TRY(std::string text, std::move(out).take());
  return heap_.text(std::move(text));
}

Status Interpreter::bind_parameters(const Macro& macro, Arguments arguments, Scope& scope) {
  const std::string& name = macro.stmt->name;
  const std::vector<Parameter>& parameters = macro.stmt->parameters;
  if (arguments.positional.size() > parameters.size()) {
    return type_error(str("the macro '", name, "' with ", arguments.positional.size(),
                          " arguments instead of ", parameters.size()));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string& parameter = parameters[i].target->name;
    const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& each) { return each.first == parameter; });
    Value value;
    if (i < arguments.positional.size()) {
      value = std::move(arguments.positional[i]);
    } else if (named != arguments.named.end()) {
      value = std::move(named->second);
      arguments.named.erase(named);
    } else if (parameters[i].fallback) {
      MORACLE_TRY(value, evaluate(*parameters[i].fallback, scope));
    } else {
      value = undefined(str("parameter '", parameter, "' was not provided"));
    }
    scope.variables.insert_or_assign(parameter, std::move(value));
  }
  for (auto& [unknown, value] : arguments.named) {
    if (unknown != "caller") {
      return type_error(str("the macro '", name, "' with an argument '", unknown, "'"));
    }
    scope.variables.insert_or_assign("caller", std::move(value));
  }
  return {};
}

Result<Value> Interpreter::make_macro(const Stmt& stmt, Scope& scope) {
  // The scope may have to outlive its block for the macro. This charge covers both.
  MORACLE_CHECK(heap_.budget().create(512));
  for (Scope* s = &scope; s && !s->captured; s = s->parent) s->captured = true;
  const Macro* made = macros_.emplace_back(std::make_unique<Macro>(Macro{&stmt, &scope})).get();
  return Value(made);
}

}  // namespace moracle::jinja
