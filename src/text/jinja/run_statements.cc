#include "base/text.h"
#include "base/try.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/library/functions.h"
#include "text/jinja/syntax/lexer.h"
#include "text/jinja/values/python_text.h"

namespace moracle::jinja {

namespace {

// Adds the line to an Error, unless an inner statement added one.
Error at_line(Error error, int line) {
  if (error.place.empty()) error.place = str("line ", line);
  return error;
}

}  // namespace

void Interpreter::set(std::string_view name, Value value) {
  root_.variables.insert_or_assign(name, std::move(value));
}

Status Interpreter::enter(int nodes) {
  if (running_ + nodes > kMaxRunningNodes) {
    return limit_error(str("macros and expressions more than ", kMaxRunningNodes, " nodes deep"));
  }
  running_ += nodes;
  return {};
}

Result<std::string> Interpreter::render(const Body& body) {
  for (const Function& function : global_functions()) {
    root_.variables.emplace(function.name, &function);
  }
  root_.captured = true;  // the root scope lives until the end of the render
  Writer out;
  MORACLE_CHECK(run(body, root_, out));
  return std::move(out).take();
}

Result<Interpreter::Flow> Interpreter::run(const Body& body, Scope& scope, Writer& out) {
  for (const StmtPtr& stmt : body) {
    MORACLE_CHECK(heap_.budget().spend(1));
    MORACLE_CHECK(enter(1));
    Result<Flow> flow = run(*stmt, scope, out);
    leave(1);
    if (!flow) return at_line(std::move(flow).error(), stmt->line);
    if (*flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Result<Interpreter::Flow> Interpreter::run(const Stmt& stmt, Scope& scope, Writer& out) {
  switch (stmt.kind) {
    case StmtKind::kData:
      MORACLE_CHECK(heap_.budget().read(stmt.name.size()));
      out.add(stmt.name);
      if (out.full()) return limit_error("a text that is too long");
      return Flow::kOn;
    case StmtKind::kPrint:
      for (const ExprPtr& expr : stmt.exprs) {
        MORACLE_TRY(const Value value, evaluate(*expr, scope));
        MORACLE_CHECK(print(value, out));
      }
      return Flow::kOn;
    case StmtKind::kSet: {
      MORACLE_TRY(Value value, evaluate(*stmt.exprs[0], scope));
      MORACLE_CHECK(assign(*stmt.target, std::move(value), scope));
      return Flow::kOn;
    }
    case StmtKind::kMacro: {
      MORACLE_TRY(Value macro, make_macro(stmt, scope));
      scope.variables.insert_or_assign(stmt.name, std::move(macro));
      return Flow::kOn;
    }
    case StmtKind::kIf:
      return run_if(stmt, scope, out);
    case StmtKind::kFor:
      return run_for(stmt, scope, out);
    case StmtKind::kSetBlock:
      return run_set_block(stmt, scope);
    case StmtKind::kWith:
      return run_with(stmt, scope, out);
    case StmtKind::kCall:
      return run_call(stmt, scope, out);
    case StmtKind::kFilter:
      return run_filter(stmt, scope, out);
    case StmtKind::kScope:
      return run_scope(stmt, scope, out);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

Status Interpreter::print(const Value& value, Writer& out) {
  if (value.is_text()) {
    MORACLE_CHECK(heap_.budget().read(value.text().size()));
    out.add(value.text());
  } else {
    MORACLE_TRY(const std::string text, to_text(value));
    MORACLE_CHECK(heap_.budget().read(text.size()));
    out.add(text);
  }
  if (out.full()) return limit_error("a text that is too long");
  return {};
}

Result<Interpreter::Flow> Interpreter::run_if(const Stmt& stmt, Scope& scope, Writer& out) {
  for (const Branch& branch : stmt.branches) {
    if (branch.condition) {
      MORACLE_TRY(const Value holds, evaluate(*branch.condition, scope));
      if (!truth(holds)) continue;
    }
    return run(branch.body, scope, out);
  }
  return Flow::kOn;
}

Result<Interpreter::Flow> Interpreter::run_for(const Stmt& stmt, Scope& scope, Writer& out) {
  MORACLE_TRY(const Value iterated, evaluate(*stmt.exprs[0], scope));
  MORACLE_TRY(Values items, elements(heap_, iterated));
  Loop::Condition condition;
  if (const Expr* kept_if = stmt.exprs[1].get()) {
    condition = [this, &stmt, kept_if, &scope](const Value& item) -> Result<bool> {
      Block block(*this, scope);
      MORACLE_CHECK(assign(*stmt.target, item, *block));
      MORACLE_TRY(const Value keeps, evaluate(*kept_if, *block));
      return truth(keeps);
    };
  }
  MORACLE_CHECK(heap_.budget().create(sizeof(Loop) * 2));
  Loop& loop = *loops_.emplace_back(std::make_unique<Loop>(std::move(items), std::move(condition)));
  Result<Flow> flow = run_loop(stmt, loop, scope, out);
  loop.finish();
  return flow;
}

Result<Interpreter::Flow> Interpreter::run_loop(const Stmt& stmt, Loop& loop, Scope& scope,
                                                Writer& out) {
  bool any = false;  // an iteration was completed: only this disables Jinja's "else"
  while (true) {
    MORACLE_TRY(const Value* item, loop.advance());
    if (!item) break;
    MORACLE_CHECK(heap_.budget().spend(1));
    // Each iteration has its own variables.
    Block block(*this, scope);
    block->variables.emplace("loop", &loop);
    MORACLE_CHECK(assign(*stmt.target, *item, *block));
    MORACLE_TRY(const Flow flow, run(stmt.body, *block, out));
    if (flow == Flow::kBreak) break;
    any = any || flow == Flow::kOn;
  }
  if (any || stmt.otherwise.empty()) return Flow::kOn;
  Block block(*this, scope);
  return run(stmt.otherwise, *block, out);
}

Result<Interpreter::Flow> Interpreter::run_set_block(const Stmt& stmt, Scope& scope) {
  Writer inner;
  {
    Block block(*this, scope);
    MORACLE_TRY(const Flow flow, run(stmt.body, *block, inner));
    if (flow != Flow::kOn) return flow;
  }
  MORACLE_TRY(std::string text, std::move(inner).take());
  MORACLE_TRY(Value value, heap_.text(std::move(text)));
  if (stmt.exprs[0]) {
    MORACLE_TRY(value, evaluate_filters(*stmt.exprs[0], std::move(value), scope));
  }
  MORACLE_CHECK(assign(*stmt.target, std::move(value), scope));
  return Flow::kOn;
}

Result<Interpreter::Flow> Interpreter::run_with(const Stmt& stmt, Scope& scope, Writer& out) {
  Block block(*this, scope);
  for (const Parameter& variable : stmt.parameters) {
    MORACLE_TRY(Value value, evaluate(*variable.fallback, scope));
    MORACLE_CHECK(assign(*variable.target, std::move(value), *block));
  }
  return run(stmt.body, *block, out);
}

Result<Interpreter::Flow> Interpreter::run_call(const Stmt& stmt, Scope& scope, Writer& out) {
  MORACLE_TRY(const Value caller, make_macro(stmt, scope));
  MORACLE_TRY(const Value value, evaluate_call(*stmt.exprs[0], scope, *caller.as<const Macro*>()));
  MORACLE_CHECK(print(value, out));
  return Flow::kOn;
}

Result<Interpreter::Flow> Interpreter::run_filter(const Stmt& stmt, Scope& scope, Writer& out) {
  Writer inner;
  {
    Block block(*this, scope);
    MORACLE_TRY(const Flow flow, run(stmt.body, *block, inner));
    if (flow != Flow::kOn) return flow;
  }
  MORACLE_TRY(std::string text, std::move(inner).take());
  MORACLE_TRY(Value value, heap_.text(std::move(text)));
  MORACLE_TRY(value, evaluate_filters(*stmt.exprs[0], std::move(value), scope));
  if (!value.is_text())
    return type_error(str("a filter block that gives a '", type_name(value), "'"));
  MORACLE_CHECK(print(value, out));
  return Flow::kOn;
}

Result<Interpreter::Flow> Interpreter::run_scope(const Stmt& stmt, Scope& scope, Writer& out) {
  Block block(*this, scope);
  return run(stmt.body, *block, out);
}

Status Interpreter::assign(const Expr& target, Value value, Scope& scope) {
  if (target.kind == ExprKind::kName) {
    scope.variables.insert_or_assign(target.name, std::move(value));
    return {};
  }
  if (target.kind == ExprKind::kNamespaceAttribute) {
    MORACLE_TRY(const Value owner, look_up(target, scope));
    const auto* space = owner.as<Namespace*>();
    if (!space)
      return type_error(
          str("an assignment to an attribute of '", target.name, "', which is not a namespace"));
    MORACLE_CHECK(check_attribute_name(target.value.text()));
    MORACLE_CHECK(heap_.budget().create(sizeof(Value)));
    (*space)->attributes.insert_or_assign(std::string(target.value.text()), std::move(value));
    return {};
  }
  MORACLE_TRY(Values parts, elements(heap_, value));
  if (parts.size() != target.items.size()) {
    return type_error(str(parts.size(), " values for ", target.items.size(), " names"));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    MORACLE_CHECK(assign(*target.items[i], std::move(parts[i]), scope));
  }
  return {};
}

}  // namespace moracle::jinja
