#include "text/jinja/syntax/parser.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"

namespace moracle::jinja {

namespace {

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "text outside of tags";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "the end of a '{% %}' tag";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kEnd:
      return "the end of the template";
    default:
      return str("'", token.text, "'");
  }
}

}  // namespace

Result<Body> parse_template(std::string_view text) {
  MORACLE_TRY(std::vector<Token> tokens, tokenize(text));
  return Parser(std::move(tokens)).parse();
}

Result<Body> Parser::parse() {
  return body({});
}

Token Parser::take() {
  Token token = now();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::take_operator(std::string_view text) {
  if (!now().is_operator(text)) return false;
  take();
  return true;
}

bool Parser::take_name(std::string_view text) {
  if (!now().is_name(text)) return false;
  take();
  return true;
}

Status Parser::expect_operator(std::string_view text) {
  if (take_operator(text)) return {};
  return syntax_error(now().line, str("'", text, "' is missing before ", describe(now())));
}

Status Parser::expect(TokenKind kind) {
  if (now().kind != kind) return unexpected();
  take();
  return {};
}

Result<std::string> Parser::expect_name() {
  if (now().kind != TokenKind::kName) {
    return syntax_error(now().line, str("a name is missing before ", describe(now())));
  }
  return take().text;
}

bool Parser::at_name_of(Names names) const {
  return now().kind == TokenKind::kName &&
         std::find(names.begin(), names.end(), now().text) != names.end();
}

Error Parser::unexpected() const {
  return syntax_error(now().line, str("unexpected ", describe(now())));
}

Result<ExprPtr> Parser::finish(Expr node) const {
  for (const ExprPtr& item : node.items) {
    if (item) node.height = std::max(node.height, item->height + 1);
  }
  for (const Keyword& keyword : node.named) {
    node.height = std::max(node.height, keyword.value->height + 1);
  }
  for (const ExprPtr* spread : {&node.spread, &node.spread_named}) {
    if (*spread) node.height = std::max(node.height, (*spread)->height + 1);
  }
  if (node.height > kMaxNesting) {
    return unsupported_error(node.line, str("an expression of more than ", kMaxNesting, " levels"));
  }
  return ExprPtr(std::make_unique<const Expr>(std::move(node)));
}

Result<ExprPtr> Parser::binary(ExprKind kind, int line, ExprPtr left, ExprPtr right,
                               std::string name) const {
  Expr node{kind, line};
  node.name = std::move(name);
  node.items.push_back(std::move(left));
  node.items.push_back(std::move(right));
  return finish(std::move(node));
}

Status Parser::enter() {
  if (++depth_ <= kMaxNesting) return {};
  return unsupported_error(now().line, str("nesting of more than ", kMaxNesting, " levels"));
}

}  // namespace moracle::jinja
