#include "text/regex/regex_dialect.h"

#include <vector>

#include "base/text.h"
#include "base/try.h"
#include "text/regex/regex_class.h"
#include "text/regex/regex_escape.h"

namespace moracle {
namespace {

constexpr size_t kNone = static_cast<size_t>(-1);

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    if (in_.substr(0, 4) == "(?i)") {  // further inside, the dialects disagree on where it ends
      out_ = "(?i)";
      at_ = 4;
      caseless_ = true;
    }
    while (at_ < in_.size()) MORACLE_CHECK(step());
    if (!groups_.empty()) return unsupported_regex("balanced parentheses", "an open one");
    return std::move(out_);
  }

 private:
  struct Group {
    size_t begin;   ///< start of the group in out_
    bool caseless;  ///< whether the surrounding text is caseless
  };

  Status step() {
    switch (in_[at_]) {
      case '(':
        return open_group();
      case ')':
        return close_group();
      case '*':
      case '+':
      case '?':
        return quantifier(std::string(1, in_[at_++]), false);
      case '{':
        return interval();
      case '[':
        return bracket();
      case '|':
      case '^':
      case '$':
        if (in_[at_] == '|') last_letter_ = 0;
        atom_ = kNone;
        out_ += in_[at_++];
        return {};
      case '.':
        atom_ = out_.size();
        out_ += in_[at_++];
        return {};
      default:
        return atom();
    }
  }

  Status atom() {
    const size_t begin = at_;
    MORACLE_TRY(const RegexAtom atom, read_regex_atom(in_, at_));
    if (caseless_) MORACLE_CHECK(check_caseless(atom, in_.substr(begin, at_ - begin)));
    atom_ = out_.size();
    switch (atom.kind) {
      case RegexAtom::Kind::kCode:
        out_ += regex_literal(atom.code);
        break;
      case RegexAtom::Kind::kClass:
        out_ += str('[', atom.text, ']');
        break;
      case RegexAtom::Kind::kNoneOf:
        out_ += str("[^", atom.text, ']');
        break;
      case RegexAtom::Kind::kAnchor:
        out_ += atom.text;
        atom_ = kNone;
    }
    return {};
  }

  /// In Oniguruma only, full case folding makes one character match several, and the other way
  /// round. Among ASCII texts, this affects the ligatures and the sharp s.
  Status check_caseless(const RegexAtom& atom, std::string_view text) {
    const bool cased = atom.text == "\\p{Lu}" || atom.text == "\\p{Ll}" || atom.text == "\\p{Lt}";
    const auto letter = static_cast<char>(atom.code < 0x80 ? atom.code | 0x20 : 0);
    const std::string pair{last_letter_, letter};
    const bool folds = pair == "ss" || pair == "st" || pair == "ff" || pair == "fi" || pair == "fl";
    if (atom.code > 0x7F || cased || folds) {
      return unsupported_regex("case-insensitive text without multi-character foldings",
                               folds ? pair : std::string(text));
    }
    last_letter_ = letter;
    return {};
  }

  Status bracket() {
    const size_t begin = at_;
    MORACLE_TRY(const std::string text, read_regex_class(in_, at_));
    const std::string_view source = in_.substr(begin, at_ - begin);
    if (caseless_) {
      for (const char c : source) {
        if (static_cast<uint8_t>(c) > 0x7F || c == '\\') {
          return unsupported_regex("plain ASCII in case-insensitive classes", std::string(source));
        }
      }
    }
    last_letter_ = 0;
    atom_ = out_.size();
    out_ += text;
    return {};
  }

  Status open_group() {
    static constexpr std::string_view kHeads[] = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    groups_.push_back({out_.size(), caseless_});
    atom_ = kNone;
    last_letter_ = 0;
    for (const std::string_view head : kHeads) {
      if (in_.substr(at_, head.size()) != head) continue;
      if (head == "(?i:") caseless_ = true;
      if (head == "(?-i:") caseless_ = false;
      out_ += head;
      at_ += head.size();
      return {};
    }
    if (in_.substr(at_, 2) == "(?" || in_.substr(at_, 2) == "(*") {
      return unsupported_regex("groups (?: (?= (?! (?<= (?<! (?> (?i: (?-i:",
                               std::string(in_.substr(at_, 4)));
    }
    out_ += "(?:";  // a tokenizer does not use captures
    ++at_;
    return {};
  }

  Status close_group() {
    if (groups_.empty()) return unsupported_regex("balanced parentheses", "an extra )");
    atom_ = groups_.back().begin;
    caseless_ = groups_.back().caseless;
    last_letter_ = 0;
    groups_.pop_back();
    out_ += in_[at_++];
    return {};
  }

  /// Reads "{n}", "{n,}", "{,m}" or "{n,m}"; anything else is a plain brace.
  Status interval() {
    size_t end = at_ + 1;
    const auto digits = [&] {
      const size_t begin = end;
      while (end < in_.size() && in_[end] >= '0' && in_[end] <= '9') ++end;
      return std::string(in_.substr(begin, end - begin));
    };
    const std::string low = digits();
    const bool comma = end < in_.size() && in_[end] == ',';
    if (comma) ++end;
    const std::string high = comma ? digits() : low;
    const bool closed = end < in_.size() && in_[end] == '}';
    if (!closed || (low.empty() && high.empty())) return atom();
    at_ = end + 1;
    return quantifier(str('{', low.empty() ? "0" : low, comma ? "," : "", comma ? high : "", '}'),
                      true, comma);
  }

  /// Appends a quantifier and the sign that may follow it. In Oniguruma, `+` after an interval is a
  /// second repeat, and so is `?` after an interval without a comma.
  Status quantifier(std::string text, bool is_interval, bool is_range = false) {
    if (atom_ == kNone) return unsupported_regex("something to repeat", text);
    last_letter_ = 0;
    out_ += text;
    const char sign = at_ < in_.size() ? in_[at_] : '\0';
    if (sign == '+' || sign == '?') {
      if (is_interval && (sign == '+' || !is_range)) {
        out_.insert(atom_, "(?:");
        out_ += ')';
      }
      out_ += sign;
      ++at_;
    }
    atom_ = kNone;
    return {};
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = kNone;   ///< start in out_ of the last item that can be repeated
  char last_letter_ = 0;  ///< last letter, lower case, in case-insensitive text
  bool caseless_ = false;
  std::vector<Group> groups_;
};

}  // namespace

Result<std::string> to_pcre2(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace moracle
