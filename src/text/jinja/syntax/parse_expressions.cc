// Parses expressions, from the loosest binding to the tightest.
#include "base/text.h"
#include "base/try.h"
#include "text/jinja/syntax/parser.h"

namespace moracle::jinja {

Result<ExprPtr> Parser::tuple(TupleStyle style, bool before_in, bool namespaces) {
  Expr node{ExprKind::kTuple, now().line};
  bool is_tuple = false;
  while (true) {
    if (!node.items.empty()) MORACLE_CHECK(expect_operator(","));
    if (now().kind == TokenKind::kVariableEnd || now().kind == TokenKind::kBlockEnd ||
        now().is_operator(")") || (before_in && now().is_name("in")) ||
        (style == TupleStyle::kNoCondition && now().is_name("recursive"))) {
      break;
    }
    MORACLE_TRY(ExprPtr item, style == TupleStyle::kTarget        ? primary(namespaces)
                              : style == TupleStyle::kNoCondition ? or_expression()
                                                                  : expression());
    node.items.push_back(std::move(item));
    if (!now().is_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !node.items.empty()) return std::move(node.items[0]);
  if (!is_tuple && style != TupleStyle::kParenthesized) return unexpected();
  return finish(std::move(node));
}

Result<ExprPtr> Parser::condition() {
  MORACLE_CHECK(enter());
  const Level level{depth_};
  MORACLE_TRY(ExprPtr value, or_expression());
  while (now().is_name("if")) {
    Expr node{ExprKind::kCondition, take().line};
    node.items.push_back(std::move(value));
    MORACLE_TRY(ExprPtr test, or_expression());
    node.items.push_back(std::move(test));
    ExprPtr otherwise;
    if (take_name("else")) {
      MORACLE_TRY(otherwise, condition());
    }
    node.items.push_back(std::move(otherwise));
    MORACLE_TRY(value, finish(std::move(node)));
  }
  return value;
}

Result<ExprPtr> Parser::or_expression() {
  MORACLE_TRY(ExprPtr left, and_expression());
  while (now().is_name("or")) {
    const int line = take().line;
    MORACLE_TRY(ExprPtr right, and_expression());
    MORACLE_TRY(left, binary(ExprKind::kOr, line, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> Parser::and_expression() {
  MORACLE_TRY(ExprPtr left, not_expression());
  while (now().is_name("and")) {
    const int line = take().line;
    MORACLE_TRY(ExprPtr right, not_expression());
    MORACLE_TRY(left, binary(ExprKind::kAnd, line, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> Parser::not_expression() {
  if (!now().is_name("not")) return comparison();
  MORACLE_CHECK(enter());
  const Level level{depth_};
  Expr node{ExprKind::kNot, take().line};
  MORACLE_TRY(ExprPtr value, not_expression());
  node.items.push_back(std::move(value));
  return finish(std::move(node));
}

Result<ExprPtr> Parser::comparison() {
  Expr node{ExprKind::kCompare, now().line};
  MORACLE_TRY(ExprPtr first, sum());
  node.items.push_back(std::move(first));
  while (true) {
    constexpr std::pair<std::string_view, Comparison> kOperators[] = {
        {"==", Comparison::kEqual},  {"!=", Comparison::kNotEqual},
        {"<", Comparison::kLess},    {"<=", Comparison::kLessEqual},
        {">", Comparison::kGreater}, {">=", Comparison::kGreaterEqual},
    };
    const size_t known = node.comparisons.size();
    for (const auto& [text, comparison] : kOperators) {
      if (now().is_operator(text)) node.comparisons.push_back(comparison);
    }
    if (now().is_name("in")) node.comparisons.push_back(Comparison::kIn);
    if (now().is_name("not") && next().is_name("in")) {
      take();
      node.comparisons.push_back(Comparison::kNotIn);
    }
    if (node.comparisons.size() == known) break;
    take();
    MORACLE_TRY(ExprPtr operand, sum());
    node.items.push_back(std::move(operand));
  }
  if (node.comparisons.empty()) return std::move(node.items[0]);
  return finish(std::move(node));
}

Result<ExprPtr> Parser::sum() {
  MORACLE_TRY(ExprPtr left, concatenation());
  while (now().is_operator("+") || now().is_operator("-")) {
    const Token sign = take();
    MORACLE_TRY(ExprPtr right, concatenation());
    MORACLE_TRY(left,
                binary(ExprKind::kBinary, sign.line, std::move(left), std::move(right), sign.text));
  }
  return left;
}

Result<ExprPtr> Parser::concatenation() {
  Expr node{ExprKind::kConcat, now().line};
  do {
    MORACLE_TRY(ExprPtr part, product());
    node.items.push_back(std::move(part));
  } while (take_operator("~"));
  if (node.items.size() == 1) return std::move(node.items[0]);
  return finish(std::move(node));
}

Result<ExprPtr> Parser::product() {
  MORACLE_TRY(ExprPtr left, power());
  while (now().is_operator("*") || now().is_operator("/") || now().is_operator("//") ||
         now().is_operator("%")) {
    const Token sign = take();
    MORACLE_TRY(ExprPtr right, power());
    MORACLE_TRY(left,
                binary(ExprKind::kBinary, sign.line, std::move(left), std::move(right), sign.text));
  }
  return left;
}

Result<ExprPtr> Parser::power() {
  // Left-associative in Jinja, unlike Python.
  MORACLE_TRY(ExprPtr left, unary());
  while (now().is_operator("**")) {
    const int line = take().line;
    MORACLE_TRY(ExprPtr right, unary());
    MORACLE_TRY(left, binary(ExprKind::kBinary, line, std::move(left), std::move(right), "**"));
  }
  return left;
}

Result<ExprPtr> Parser::unary(bool with_filters) {
  MORACLE_CHECK(enter());
  const Level level{depth_};
  ExprPtr node;
  if (now().is_operator("-") || now().is_operator("+")) {
    const Token sign = take();
    Expr signed_node{ExprKind::kUnary, sign.line};
    signed_node.name = sign.text;
    MORACLE_TRY(ExprPtr operand, unary(false));
    signed_node.items.push_back(std::move(operand));
    MORACLE_TRY(node, finish(std::move(signed_node)));
  } else {
    MORACLE_TRY(node, primary());
  }
  MORACLE_TRY(node, postfix(std::move(node)));
  return with_filters ? filters_and_tests(std::move(node)) : Result<ExprPtr>(std::move(node));
}

Result<ExprPtr> Parser::primary(bool namespaces) {
  Expr node{ExprKind::kConst, now().line};
  if (now().is_operator("(")) {
    MORACLE_CHECK(enter());
    const Level level{depth_};
    take();
    MORACLE_TRY(ExprPtr inner, tuple(TupleStyle::kParenthesized));
    MORACLE_CHECK(expect_operator(")"));
    return inner;
  }
  if (now().is_operator("[")) return list();
  if (now().is_operator("{")) return dict();
  if (now().kind == TokenKind::kString) {
    std::string text;
    while (now().kind == TokenKind::kString) text += take().text;
    node.value = Text{std::make_shared<const std::string>(std::move(text))};
  } else if (now().kind == TokenKind::kInteger) {
    node.value = take().integer;
  } else if (now().kind == TokenKind::kFloat) {
    node.value = take().number;
  } else if (now().kind == TokenKind::kName) {
    const std::string name = take().text;
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      node.value = name == "true" || name == "True";
    } else if (name == "none" || name == "None") {
      node.value = None{};
    } else {
      if (extras_) {
        extras_->varargs |= name == "varargs";
        extras_->kwargs |= name == "kwargs";
        extras_->caller |= name == "caller";
      }
      node.kind = ExprKind::kName;
      node.name = name;
      if (namespaces && take_operator(".")) {
        node.kind = ExprKind::kNamespaceAttribute;
        MORACLE_TRY(std::string attribute, expect_name());
        node.value = Text{std::make_shared<const std::string>(std::move(attribute))};
      }
    }
  } else {
    return unexpected();
  }
  return finish(std::move(node));
}

Result<ExprPtr> Parser::list() {
  Expr node{ExprKind::kList, take().line};
  while (!now().is_operator("]")) {
    if (!node.items.empty()) MORACLE_CHECK(expect_operator(","));
    if (now().is_operator("]")) break;
    MORACLE_TRY(ExprPtr item, expression());
    node.items.push_back(std::move(item));
  }
  take();
  return finish(std::move(node));
}

Result<ExprPtr> Parser::dict() {
  Expr node{ExprKind::kDict, take().line};
  while (!now().is_operator("}")) {
    if (!node.items.empty()) MORACLE_CHECK(expect_operator(","));
    if (now().is_operator("}")) break;
    MORACLE_TRY(ExprPtr key, expression());
    node.items.push_back(std::move(key));
    MORACLE_CHECK(expect_operator(":"));
    MORACLE_TRY(ExprPtr value, expression());
    node.items.push_back(std::move(value));
  }
  take();
  return finish(std::move(node));
}

}  // namespace moracle::jinja
