// Parses postfix expressions: .name, [item], (arguments), |filter, is test.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "text/jinja/library/filters.h"
#include "text/jinja/library/methods.h"
#include "text/jinja/library/tests.h"
#include "text/jinja/syntax/parser.h"

namespace moracle::jinja {

Result<ExprPtr> Parser::postfix(ExprPtr node) {
  while (true) {
    if (now().is_operator(".")) {
      MORACLE_TRY(node, attribute(std::move(node)));
    } else if (now().is_operator("[")) {
      MORACLE_TRY(node, subscript(std::move(node)));
    } else if (now().is_operator("(")) {
      MORACLE_TRY(node, call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExprPtr> Parser::filters_and_tests(ExprPtr node) {
  while (true) {
    if (now().is_operator("|")) {
      MORACLE_TRY(node, filter_chain(std::move(node), false));
    } else if (now().is_name("is")) {
      MORACLE_TRY(node, test(std::move(node)));
    } else if (now().is_operator("(")) {
      MORACLE_TRY(node, call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExprPtr> Parser::attribute(ExprPtr node) {
  Expr made{ExprKind::kAttribute, take().line};
  made.items.push_back(std::move(node));
  if (now().kind == TokenKind::kInteger) {
    // x.0 is x[0].
    made.kind = ExprKind::kItem;
    Expr index{ExprKind::kConst, now().line};
    index.value = take().integer;
    MORACLE_TRY(ExprPtr item, finish(std::move(index)));
    made.items.push_back(std::move(item));
  } else {
    MORACLE_TRY(made.name, expect_name());
  }
  return finish(std::move(made));
}

Result<ExprPtr> Parser::subscript(ExprPtr node) {
  Expr made{ExprKind::kItem, take().line};
  made.items.push_back(std::move(node));
  ExprPtr part;
  if (!now().is_operator(":")) {
    MORACLE_TRY(part, expression());
  }
  made.items.push_back(std::move(part));
  while (made.items.size() < 4 && take_operator(":")) {
    made.kind = ExprKind::kSlice;
    ExprPtr bound;
    if (!now().is_operator(":") && !now().is_operator("]") && !now().is_operator(",")) {
      MORACLE_TRY(bound, expression());
    }
    made.items.push_back(std::move(bound));
  }
  if (now().is_operator(",")) return unsupported_error(now().line, "a subscript with a ','");
  MORACLE_CHECK(expect_operator("]"));
  if (made.kind == ExprKind::kSlice) made.items.resize(4);
  return finish(std::move(made));
}

Result<ExprPtr> Parser::call(ExprPtr node) {
  Expr made{ExprKind::kCall, now().line};
  if (node->kind == ExprKind::kAttribute && lacks_method(node->name)) {
    return unsupported_error(made.line, str("the method '.", node->name, "()'"));
  }
  if (node->kind == ExprKind::kName &&
      (node->name == "cycler" || node->name == "joiner" || node->name == "lipsum")) {
    return unsupported_error(made.line, str("the function '", node->name, "()'"));
  }
  made.items.push_back(std::move(node));
  MORACLE_CHECK(arguments(made));
  return finish(std::move(made));
}

Status Parser::arguments(Expr& node) {
  const int line = now().line;
  MORACLE_CHECK(expect_operator("("));
  bool first = true;
  while (!now().is_operator(")")) {
    if (!first) MORACLE_CHECK(expect_operator(","));
    first = false;
    if (now().is_operator(")")) break;
    if (node.spread_named) return syntax_error(line, "an argument after '**'");
    if (now().is_operator("*") || now().is_operator("**")) {
      const bool named = take().text == "**";
      if (node.spread && !named) return syntax_error(line, "'*' before two arguments");
      MORACLE_TRY(ExprPtr value, expression());
      (named ? node.spread_named : node.spread) = std::move(value);
    } else if (now().kind == TokenKind::kName && next().is_operator("=")) {
      Keyword keyword;
      keyword.name = take().text;
      take();
      for (const Keyword& other : node.named) {
        if (other.name == keyword.name) return syntax_error(line, "an argument given twice");
      }
      MORACLE_TRY(keyword.value, expression());
      node.named.push_back(std::move(keyword));
    } else {
      if (!node.named.empty()) return syntax_error(line, "a positional argument after a named one");
      if (node.spread) return syntax_error(line, "a positional argument after '*'");
      MORACLE_TRY(ExprPtr value, expression());
      node.items.push_back(std::move(value));
    }
  }
  take();
  return {};
}

Status Parser::leave_for_later(const Expr& node, bool left_out, std::string what) const {
  if (branches_ > 0 && !left_out) return {};
  return unsupported_error(node.line, str(what, "'", node.name, "'"));
}

Result<ExprPtr> Parser::filter_chain(ExprPtr node, bool named_already) {
  while (named_already || take_operator("|")) {
    named_already = false;
    Expr made{ExprKind::kFilter, now().line};
    MORACLE_TRY(made.name, expect_name());
    while (take_operator(".")) {
      MORACLE_TRY(std::string part, expect_name());
      made.name += "." + part;
    }
    made.function = find_filter(made.name);
    if (!made.function) {
      MORACLE_CHECK(leave_for_later(made, lacks_filter(made.name), "the filter "));
    }
    made.items.push_back(std::move(node));
    if (now().is_operator("(")) MORACLE_CHECK(arguments(made));
    MORACLE_TRY(node, finish(std::move(made)));
  }
  return node;
}

Result<ExprPtr> Parser::test(ExprPtr node) {
  Expr made{ExprKind::kTest, take().line};
  const bool negated = take_name("not");
  MORACLE_TRY(made.name, expect_name());
  made.function = find_test(made.name);
  if (!made.function) {
    MORACLE_CHECK(leave_for_later(made, lacks_test(made.name), "the test "));
  }
  made.items.push_back(std::move(node));
  const bool literal = now().kind == TokenKind::kName || now().kind == TokenKind::kString ||
                       now().kind == TokenKind::kInteger || now().kind == TokenKind::kFloat;
  if (now().is_operator("(")) {
    MORACLE_CHECK(arguments(made));
  } else if ((literal || now().is_operator("[") || now().is_operator("{")) &&
             !at_name_of({"else", "or", "and"})) {
    if (now().is_name("is")) return syntax_error(made.line, "several tests in a row");
    MORACLE_TRY(ExprPtr argument, primary());
    MORACLE_TRY(argument, postfix(std::move(argument)));
    made.items.push_back(std::move(argument));
  }
  MORACLE_TRY(ExprPtr tested, finish(std::move(made)));
  if (!negated) return tested;
  Expr inverse{ExprKind::kNot, tested->line};
  inverse.items.push_back(std::move(tested));
  return finish(std::move(inverse));
}

}  // namespace moracle::jinja
