// Runs a parsed template.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/function.h"
#include "text/jinja/loop.h"
#include "text/jinja/syntax/ast.h"

namespace moracle::jinja {

/// Variables of one block. Lookup continues in the parent scope. The names point into the syntax
/// tree.
struct Scope {
  Scope* parent = nullptr;
  std::map<std::string_view, Value> variables;
  bool captured = false;  ///< a macro defined here may read this scope after the block ends
};

/// {% macro %}, or the body of {% call %}, with the scope of its definition.
struct Macro {
  const Stmt* stmt = nullptr;
  Scope* scope = nullptr;
};

/// Renders a template once.
class Interpreter {
 public:
  Heap& heap() { return heap_; }
  /// Sets a variable of the template; `name` must outlive the render.
  void set(std::string_view name, Value value);
  /// Errors, with the line: raise_exception(), an operation that Python rejects, or an exceeded
  /// limit.
  Result<std::string> render(const Body& body);

 private:
  enum class Flow { kOn, kBreak, kContinue };

  // Counts every running node, so that no template can exhaust the stack.
  Status enter(int nodes);
  void leave(int nodes) { running_ -= nodes; }

  // Statements (run_statements.cc).
  Result<Flow> run(const Body& body, Scope& scope, Writer& out);
  Result<Flow> run(const Stmt& stmt, Scope& scope, Writer& out);
  Status print(const Value& value, Writer& out);
  Result<Flow> run_if(const Stmt& stmt, Scope& scope, Writer& out);
  Result<Flow> run_for(const Stmt& stmt, Scope& scope, Writer& out);
  Result<Flow> run_loop(const Stmt& stmt, Loop& loop, Scope& scope, Writer& out);
  Result<Flow> run_set_block(const Stmt& stmt, Scope& scope);
  Result<Flow> run_with(const Stmt& stmt, Scope& scope, Writer& out);
  Result<Flow> run_call(const Stmt& stmt, Scope& scope, Writer& out);
  Result<Flow> run_filter(const Stmt& stmt, Scope& scope, Writer& out);
  Result<Flow> run_scope(const Stmt& stmt, Scope& scope, Writer& out);
  Status assign(const Expr& target, Value value, Scope& scope);

  // Expressions (evaluate.cc); `evaluate` adds the line to Errors.
  Result<Value> evaluate(const Expr& expr, Scope& scope);
  Result<Value> dispatch(const Expr& expr, Scope& scope);
  Result<Value> look_up(const Expr& expr, const Scope& scope);
  Result<Value> evaluate_list(const Expr& expr, Scope& scope);
  Result<Value> evaluate_dict(const Expr& expr, Scope& scope);
  Result<Value> evaluate_slice(const Expr& expr, Scope& scope);
  Result<Value> evaluate_function(const Expr& expr, Scope& scope);
  Result<Value> evaluate_compare(const Expr& expr, Scope& scope);
  Result<Value> evaluate_concat(const Expr& expr, Scope& scope);
  Result<Value> evaluate_condition(const Expr& expr, Scope& scope);
  Result<Value> evaluate_filters(const Expr& chain, Value input, Scope& scope);

  // Calls (call.cc).
  Result<Arguments> arguments_of(const Expr& expr, Scope& scope);
  Result<Value> evaluate_call(const Expr& expr, Scope& scope, const Macro* caller = nullptr);
  Result<Value> call_macro(const Macro& macro, Arguments arguments);
  Status spread_named(const Value& entries, Arguments& arguments);
  Status bind_parameters(const Macro& macro, Arguments arguments, Scope& scope);
  Status bind_extras(const Macro& macro, Arguments arguments, Scope& scope);
  Result<Value> make_macro(const Stmt& stmt, Scope& scope);

  // RAII scope of a block. It outlives the block if a macro captured it.
  class Block;

  Heap heap_;
  Scope root_;
  std::vector<std::unique_ptr<Scope>> captured_;
  std::vector<std::unique_ptr<Macro>> macros_;
  std::vector<std::unique_ptr<Loop>> loops_;
  Value block_input_;  // input of the innermost filter of a filter block
  int running_ = 0;
};

class Interpreter::Block {
 public:
  Block(Interpreter& owner, Scope& parent) : owner_(owner), scope_(std::make_unique<Scope>()) {
    scope_->parent = &parent;
  }
  ~Block() {
    if (scope_->captured) owner_.captured_.push_back(std::move(scope_));
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  Scope& operator*() { return *scope_; }
  Scope* operator->() { return scope_.get(); }

 private:
  Interpreter& owner_;
  std::unique_ptr<Scope> scope_;
};

}  // namespace moracle::jinja
