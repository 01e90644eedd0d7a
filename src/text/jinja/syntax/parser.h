// Builds the syntax tree by the grammar of Jinja 3.1.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "text/jinja/syntax/ast.h"
#include "text/jinja/syntax/lexer.h"

namespace moracle::jinja {

/// Parses a template. Errors: syntax errors (kBadFile); constructs that this renderer lacks
/// (kUnsupported): unknown statements, filters, tests and methods, and nesting beyond kMaxNesting.
Result<Body> parse_template(std::string_view text);

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Result<Body> parse();

 private:
  using Names = std::initializer_list<std::string_view>;

  // Statements (parse_statements.cc).
  Result<Body> body(Names ends);   // parses up to one of the tags in `ends`; stops at its name
  Result<Body> block(Names ends);  // parses the end of this tag, then body(ends)
  Result<Body> block_to(std::string_view end);  // as block({end}); also consumes `end`
  // As block_to, for the body of a macro or call. Records the implicit names that it uses.
  Result<Body> macro_body(std::string_view end, MacroExtras& extras);
  Result<StmtPtr> statement();
  Result<StmtPtr> if_statement();
  Result<StmtPtr> for_statement();
  Result<StmtPtr> set_statement();
  Result<StmtPtr> with_statement();
  Result<StmtPtr> macro_statement();
  Result<StmtPtr> call_statement();
  Result<StmtPtr> filter_statement();
  Result<StmtPtr> print_statement();
  Result<std::vector<Parameter>> signature();
  Result<ExprPtr> target(bool namespaces, bool before_in);

  // Expressions (parse_expressions.cc), from the loosest binding to the tightest.
  enum class TupleStyle { kPlain, kNoCondition, kParenthesized, kTarget };
  Result<ExprPtr> tuple(TupleStyle style, bool before_in = false, bool namespaces = false);
  Result<ExprPtr> expression() { return condition(); }
  Result<ExprPtr> condition();
  Result<ExprPtr> or_expression();
  Result<ExprPtr> and_expression();
  Result<ExprPtr> not_expression();
  Result<ExprPtr> comparison();
  Result<ExprPtr> sum();
  Result<ExprPtr> concatenation();
  Result<ExprPtr> product();
  Result<ExprPtr> power();
  Result<ExprPtr> unary(bool with_filters = true);
  Result<ExprPtr> primary(bool namespaces = false);
  Result<ExprPtr> list();
  Result<ExprPtr> dict();

  // Postfix expressions (parse_postfix.cc).
  Result<ExprPtr> postfix(ExprPtr node);
  Result<ExprPtr> filters_and_tests(ExprPtr node);
  Result<ExprPtr> attribute(ExprPtr node);
  Result<ExprPtr> subscript(ExprPtr node);
  Result<ExprPtr> call(ExprPtr node);
  Result<ExprPtr> filter_chain(ExprPtr node, bool named_already);
  Result<ExprPtr> test(ExprPtr node);
  Status arguments(Expr& node);
  // Errors: a construct that this renderer lacks. If Jinja lacks it too, defers the error to the
  // render, as Jinja does.
  Status leave_for_later(const Expr& node, bool left_out, std::string what) const;

  // Token access.
  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token take();
  bool take_operator(std::string_view text);
  bool take_name(std::string_view text);
  Status expect_operator(std::string_view text);
  Status expect(TokenKind kind);
  Result<std::string> expect_name();
  bool at_name_of(Names names) const;
  Error unexpected() const;

  // Node construction. Errors: deeper than kMaxNesting.
  Result<ExprPtr> finish(Expr node) const;
  Result<ExprPtr> binary(ExprKind kind, int line, ExprPtr left, ExprPtr right,
                         std::string name = "") const;
  Status enter();  // enters a recursion level; ~Level leaves it
  struct Level {
    int& depth;
    ~Level() { --depth; }
  };

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  bool in_loop_ = false;  // true where {% break %} is allowed
  int branches_ = 0;      // depth of {% if %}: there an unknown filter fails only if it runs
  MacroExtras* extras_ = nullptr;  // implicit names of the innermost macro; null outside of macros
};

}  // namespace moracle::jinja
