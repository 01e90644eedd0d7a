// Calls of macros, methods and functions.
#include <algorithm>
#include <iterator>

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
  if (expr.spread) {
    MORACLE_TRY(const Value list, evaluate(*expr.spread, scope));
    MORACLE_TRY(Values items, elements(heap_, list));
    std::move(items.begin(), items.end(), std::back_inserter(arguments.positional));
  }
  for (const Keyword& keyword : expr.named) {
    MORACLE_TRY(Value value, evaluate(*keyword.value, scope));
    arguments.named.emplace_back(keyword.name, std::move(value));
  }
  if (expr.spread_named) {
    MORACLE_TRY(const Value entries, evaluate(*expr.spread_named, scope));
    MORACLE_CHECK(spread_named(entries, arguments));
  }
  return arguments;
}

Status Interpreter::spread_named(const Value& entries, Arguments& arguments) {
  if (entries.is_undefined()) return undefined_error(entries);
  const Mapping* mapping = entries.mapping();
  if (!mapping) return type_error(str("'**' before a '", type_name(entries), "'"));
  MORACLE_CHECK(heap_.budget().read(mapping->entries.size() * 32));
  const size_t written = arguments.named.size();
  for (const auto& [key, value] : mapping->entries) {
    if (!key.is_text()) return type_error("'**' before a dict with a key that is not a str");
    const std::string_view name = key.text();
    // A dict has no duplicate keys: skip the check.
    for (size_t i = 0; i < written; ++i) {
      if (arguments.named[i].first == name)
        return type_error(str("an argument '", std::string(name), "' given twice"));
    }
    arguments.named.emplace_back(name, value);
  }
  return {};
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
  // A call needs more stack than other nodes: count it three times.
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
  const std::vector<Parameter>& parameters = macro.stmt->parameters;
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
  return bind_extras(macro, std::move(arguments), scope);
}

Status Interpreter::bind_extras(const Macro& macro, Arguments arguments, Scope& scope) {
  const std::string& name = macro.stmt->name;
  const MacroExtras& extras = macro.stmt->extras;
  const size_t parameters = macro.stmt->parameters.size();
  if (extras.caller && !scope.variables.contains("caller")) {
    Value caller = undefined("No caller defined");
    for (auto each = arguments.named.begin(); each != arguments.named.end(); ++each) {
      if (each->first != "caller") continue;
      caller = std::move(each->second);
      arguments.named.erase(each);
      break;
    }
    scope.variables.insert_or_assign("caller", std::move(caller));
  }
  if (extras.kwargs) {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [key, value] : arguments.named) {
      MORACLE_TRY(Value text, heap_.text(key));
      entries.emplace_back(std::move(text), std::move(value));
    }
    MORACLE_TRY(Value kwargs, heap_.mapping(std::move(entries)));
    scope.variables.insert_or_assign("kwargs", std::move(kwargs));
  } else if (!arguments.named.empty()) {
    return type_error(
        str("the macro '", name, "' with an argument '", arguments.named.front().first, "'"));
  }
  Values& given = arguments.positional;
  if (extras.varargs) {
    given.erase(given.begin(),
                given.begin() + static_cast<ptrdiff_t>(std::min(parameters, given.size())));
    MORACLE_TRY(Value varargs, heap_.sequence(SequenceKind::kTuple, std::move(given)));
    scope.variables.insert_or_assign("varargs", std::move(varargs));
  } else if (given.size() > parameters) {
    return type_error(
        str("the macro '", name, "' with ", given.size(), " arguments instead of ", parameters));
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
