#include "text/regex/regex_class.h"

#include <vector>

#include "base/text.h"
#include "base/try.h"
#include "text/regex/regex_escape.h"

namespace moracle {
namespace {

constexpr int kDeepest = 8;

/// The text between two `&&`: plain items for the brackets of PCRE2, and alternatives that cannot
/// be written inside brackets.
struct Operand {
  std::string items;
  std::vector<std::string> others;
  bool empty() const { return items.empty() && others.empty(); }

  std::string text() const {
    if (others.empty()) return str('[', items, ']');
    std::vector<std::string> all = others;
    if (!items.empty()) all.push_back(str('[', items, ']'));
    return str("(?:", join(all, "|"), ')');
  }
};

/// Matches one character that every operand has.
std::string intersection(const std::vector<Operand>& operands) {
  if (operands.size() == 1) return operands[0].text();
  std::string text = "(?:";
  for (size_t i = 0; i + 1 < operands.size(); ++i) text += str("(?=", operands[i].text(), ')');
  return str(text, operands.back().text(), ')');
}

class ClassReader {
 public:
  ClassReader(std::string_view pattern, size_t& at, int depth)
      : in_(pattern), at_(at), depth_(depth) {}

  Result<std::string> run() {
    const bool negated = in_.substr(++at_, 1) == "^";
    if (negated) ++at_;
    while (at_ < in_.size() && in_[at_] != ']') {
      if (in_.substr(at_, 2) == "&&") {
        if (operands_.back().empty()) return empty_class();
        operands_.emplace_back();
        at_ += 2;
      } else if (in_[at_] == '[') {
        MORACLE_CHECK(nested());
      } else {
        MORACLE_CHECK(item());
      }
    }
    if (at_ == in_.size()) return unsupported_regex("a closed class", "the pattern's end");
    if (operands_.back().empty()) return empty_class();
    ++at_;
    const bool plain = operands_.size() == 1 && operands_[0].others.empty();
    if (plain) return str(negated ? "[^" : "[", operands_[0].items, ']');
    const std::string text = intersection(operands_);
    return negated ? str("(?:(?!", text, ")(?s:.))") : text;
  }

 private:
  static Error empty_class() {
    return unsupported_regex("classes with something in them", "an empty one, or ] in first place");
  }

  Status nested() {
    if (depth_ == kDeepest) return unsupported_regex("classes nested less deeply", "more");
    if (in_.substr(at_, 2) == "[:") {
      return unsupported_regex("\\p{...} for named classes", in_.substr(at_, 8));
    }
    MORACLE_TRY(std::string text, ClassReader(in_, at_, depth_ + 1).run());
    operands_.back().others.push_back(std::move(text));
    return {};
  }

  /// A character, a range or an escaped class.
  Status item() {
    const bool dash = in_[at_] == '-';
    const bool last = in_.substr(at_ + 1, 1) == "]";
    if (dash && !last && !operands_.back().empty()) {
      return unsupported_regex("- first, last or in a range of a class", "another place");
    }
    MORACLE_TRY(const RegexAtom low, read_regex_atom(in_, at_));
    if (low.kind == RegexAtom::Kind::kAnchor) return no_character();
    if (low.kind == RegexAtom::Kind::kNoneOf) {
      operands_.back().others.push_back(str("[^", low.text, ']'));
    } else if (low.kind == RegexAtom::Kind::kClass) {
      operands_.back().items += low.text;
    } else {
      operands_.back().items += regex_literal(low.code);
      const bool range = in_.substr(at_, 1) == "-" && at_ + 1 < in_.size() && in_[at_ + 1] != ']';
      if (range) return high_end(low.code);
    }
    return {};
  }

  Status high_end(uint32_t low) {
    ++at_;
    if (in_[at_] == '[') return no_character();
    MORACLE_TRY(const RegexAtom high, read_regex_atom(in_, at_));
    if (high.kind != RegexAtom::Kind::kCode || high.code < low) return no_character();
    operands_.back().items += str('-', regex_literal(high.code));
    return {};
  }

  static Error no_character() {
    return unsupported_regex("characters and ranges in ascending order in a class",
                             "something else");
  }

  std::string_view in_;
  size_t& at_;
  int depth_;
  std::vector<Operand> operands_ = std::vector<Operand>(1);
};

}  // namespace

Result<std::string> read_regex_class(std::string_view pattern, size_t& at) {
  return ClassReader(pattern, at, 0).run();
}

}  // namespace moracle
