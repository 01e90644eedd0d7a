// Parses statements: {% ... %}
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "text/jinja/syntax/parser.h"

namespace moracle::jinja {

namespace {

Stmt make(StmtKind kind, int line) {
  Stmt node;
  node.kind = kind;
  node.line = line;
  return node;
}

Result<StmtPtr> done(Stmt node) {
  return StmtPtr(std::make_unique<const Stmt>(std::move(node)));
}

}  // namespace

Result<Body> Parser::body(Names ends) {
  Body body;
  while (now().kind != TokenKind::kEnd) {
    const int line = now().line;
    if (now().kind == TokenKind::kData) {
      Stmt node = make(StmtKind::kData, line);
      node.name = take().text;
      body.push_back(std::make_unique<const Stmt>(std::move(node)));
    } else if (now().kind == TokenKind::kVariableBegin) {
      take();
      Stmt node = make(StmtKind::kPrint, line);
      MORACLE_TRY(ExprPtr value, tuple(TupleStyle::kPlain));
      node.exprs.push_back(std::move(value));
      MORACLE_CHECK(expect(TokenKind::kVariableEnd));
      body.push_back(std::make_unique<const Stmt>(std::move(node)));
    } else {
      MORACLE_CHECK(expect(TokenKind::kBlockBegin));
      if (at_name_of(ends)) return body;
      MORACLE_TRY(StmtPtr node, statement());
      body.push_back(std::move(node));
      MORACLE_CHECK(expect(TokenKind::kBlockEnd));
    }
  }
  if (ends.size() > 0) return syntax_error(now().line, str("no '{% ", *(ends.end() - 1), " %}'"));
  return body;
}

Result<Body> Parser::block(Names ends) {
  take_operator(":");
  MORACLE_CHECK(expect(TokenKind::kBlockEnd));
  return body(ends);
}

Result<Body> Parser::block_to(std::string_view end) {
  MORACLE_TRY(Body body, block({end}));
  take();
  return body;
}

Result<Body> Parser::macro_body(std::string_view end, MacroExtras& extras) {
  const bool in_loop = std::exchange(in_loop_, false);
  MacroExtras* const outer = std::exchange(extras_, &extras);
  MORACLE_TRY(Body body, block_to(end));
  in_loop_ = in_loop;
  extras_ = outer;
  if (outer) {
    // As in Jinja, the implicit names of nested macros count for the outer macro, too.
    outer->varargs |= extras.varargs;
    outer->kwargs |= extras.kwargs;
    outer->caller |= extras.caller;
  }
  return body;
}

Result<StmtPtr> Parser::statement() {
  MORACLE_CHECK(enter());
  const Level level{depth_};
  if (now().kind != TokenKind::kName) return unexpected();
  const std::string name = now().text;
  const int line = now().line;
  if (name == "if") return if_statement();
  if (name == "for") return for_statement();
  if (name == "set") return set_statement();
  if (name == "with") return with_statement();
  if (name == "macro") return macro_statement();
  if (name == "call") return call_statement();
  if (name == "filter") return filter_statement();
  if (name == "print") return print_statement();
  if (name == "break" || name == "continue") {
    take();
    if (!in_loop_) return syntax_error(line, str("'{% ", name, " %}' outside of a loop"));
    return done(make(name == "break" ? StmtKind::kBreak : StmtKind::kContinue, line));
  }
  if (name == "generation") {
    // {% generation %} marks the assistant's tokens for training: render the body unchanged.
    take();
    Stmt node = make(StmtKind::kScope, line);
    MORACLE_TRY(node.body, macro_body("endgeneration", node.extras));
    if (node.extras.varargs || node.extras.kwargs)
      return unsupported_error(line, "'varargs' or 'kwargs' in '{% generation %}'");
    return done(std::move(node));
  }
  for (std::string_view end : {"elif", "else", "endif", "endfor", "endset", "endmacro", "endcall",
                               "endfilter", "endwith", "endgeneration", "endraw"}) {
    if (name == end) return syntax_error(line, str("'{% ", name, " %}' without its opening tag"));
  }
  return unsupported_error(line, str("'{% ", name, " %}'"));
}

Result<StmtPtr> Parser::if_statement() {
  Stmt node = make(StmtKind::kIf, take().line);
  ++branches_;
  while (true) {
    Branch branch;
    MORACLE_TRY(branch.condition, tuple(TupleStyle::kNoCondition));
    MORACLE_TRY(branch.body, block({"elif", "else", "endif"}));
    node.branches.push_back(std::move(branch));
    if (take_name("elif")) continue;
    if (take_name("else")) {
      Branch otherwise;
      MORACLE_TRY(otherwise.body, block_to("endif"));
      node.branches.push_back(std::move(otherwise));
    } else {
      take();
    }
    --branches_;
    return done(std::move(node));
  }
}

Result<StmtPtr> Parser::for_statement() {
  Stmt node = make(StmtKind::kFor, take().line);
  MORACLE_TRY(node.target, target(false, true));
  if (!take_name("in")) return syntax_error(node.line, "'{% for %}' without 'in'");
  MORACLE_TRY(ExprPtr items, tuple(TupleStyle::kNoCondition));
  node.exprs.push_back(std::move(items));
  ExprPtr condition;
  if (take_name("if")) {
    MORACLE_TRY(condition, expression());
  }
  node.exprs.push_back(std::move(condition));
  if (now().is_name("recursive")) return unsupported_error(node.line, "'{% for ... recursive %}'");
  const bool in_loop = std::exchange(in_loop_, true);
  MORACLE_TRY(node.body, block({"else", "endfor"}));
  in_loop_ = in_loop;
  if (take().text == "else") {
    MORACLE_TRY(node.otherwise, block_to("endfor"));
  }
  return done(std::move(node));
}

Result<StmtPtr> Parser::set_statement() {
  Stmt node = make(StmtKind::kSet, take().line);
  MORACLE_TRY(node.target, target(true, false));
  ExprPtr value;
  if (take_operator("=")) {
    MORACLE_TRY(value, tuple(TupleStyle::kPlain));
  } else {
    node.kind = StmtKind::kSetBlock;
    if (now().is_operator("|")) {
      MORACLE_TRY(value, filter_chain(nullptr, false));
    }
    MORACLE_TRY(node.body, block_to("endset"));
  }
  node.exprs.push_back(std::move(value));
  return done(std::move(node));
}

Result<StmtPtr> Parser::with_statement() {
  Stmt node = make(StmtKind::kWith, take().line);
  while (now().kind != TokenKind::kBlockEnd) {
    if (!node.parameters.empty()) MORACLE_CHECK(expect_operator(","));
    Parameter variable;
    MORACLE_TRY(variable.target, target(false, false));
    MORACLE_CHECK(expect_operator("="));
    MORACLE_TRY(variable.fallback, expression());
    node.parameters.push_back(std::move(variable));
  }
  MORACLE_TRY(node.body, block_to("endwith"));
  return done(std::move(node));
}

Result<std::vector<Parameter>> Parser::signature() {
  std::vector<Parameter> parameters;
  MORACLE_CHECK(expect_operator("("));
  while (!now().is_operator(")")) {
    if (!parameters.empty()) MORACLE_CHECK(expect_operator(","));
    Parameter parameter;
    Expr name{ExprKind::kName, now().line};
    MORACLE_TRY(name.name, expect_name());
    MORACLE_TRY(parameter.target, finish(std::move(name)));
    if (take_operator("=")) {
      MORACLE_TRY(parameter.fallback, expression());
    } else if (!parameters.empty() && parameters.back().fallback) {
      return syntax_error(now().line, "a parameter without a default after one with a default");
    }
    parameters.push_back(std::move(parameter));
  }
  take();
  return parameters;
}

Result<StmtPtr> Parser::macro_statement() {
  Stmt node = make(StmtKind::kMacro, take().line);
  MORACLE_TRY(node.name, expect_name());
  MORACLE_TRY(node.parameters, signature());
  MORACLE_TRY(node.body, macro_body("endmacro", node.extras));
  return done(std::move(node));
}

Result<StmtPtr> Parser::call_statement() {
  Stmt node = make(StmtKind::kCall, take().line);
  if (now().is_operator("(")) {
    MORACLE_TRY(node.parameters, signature());
  }
  MORACLE_TRY(ExprPtr called, expression());
  if (called->kind != ExprKind::kCall)
    return syntax_error(node.line, "'{% call %}' without a call");
  node.exprs.push_back(std::move(called));
  MORACLE_TRY(node.body, macro_body("endcall", node.extras));
  return done(std::move(node));
}

Result<StmtPtr> Parser::filter_statement() {
  Stmt node = make(StmtKind::kFilter, take().line);
  MORACLE_TRY(ExprPtr filters, filter_chain(nullptr, true));
  node.exprs.push_back(std::move(filters));
  MORACLE_TRY(node.body, block_to("endfilter"));
  return done(std::move(node));
}

Result<StmtPtr> Parser::print_statement() {
  Stmt node = make(StmtKind::kPrint, take().line);
  while (now().kind != TokenKind::kBlockEnd) {
    if (!node.exprs.empty()) MORACLE_CHECK(expect_operator(","));
    MORACLE_TRY(ExprPtr value, expression());
    node.exprs.push_back(std::move(value));
  }
  return done(std::move(node));
}

Result<ExprPtr> Parser::target(bool namespaces, bool before_in) {
  MORACLE_TRY(ExprPtr target, tuple(TupleStyle::kTarget, before_in, namespaces));
  // Assignment targets: names, namespace attributes, and tuples of these.
  std::vector<const Expr*> open = {target.get()};
  while (!open.empty()) {
    const Expr* part = open.back();
    open.pop_back();
    if (part->kind == ExprKind::kTuple) {
      for (const ExprPtr& item : part->items) open.push_back(item.get());
    } else if (part->kind != ExprKind::kName && part->kind != ExprKind::kNamespaceAttribute) {
      return syntax_error(part->line, "an assignment to a target that is not a name");
    }
  }
  return target;
}

}  // namespace moracle::jinja
