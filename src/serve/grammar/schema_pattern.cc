#include "serve/grammar/schema_pattern.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "base/try.h"
#include "base/utf8.h"
#include "serve/grammar/char_set.h"

namespace moracle::serve {
namespace {

// xgrammar 0.2.8 fails with an internal error above 128 repeats.
constexpr int64_t kMaxRepeat = 128, kMaxGroups = 32, kManyPositions = int64_t{1} << 20;
constexpr size_t kMaxPatternBytes = 4096;
const CharRanges kDigitChars{{'0', '9'}};
const CharRanges kWordChars{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
// White space and line terminators of ECMA-262.
const CharRanges kSpaceChars{{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680},
                             {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                             {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharRanges kLineEnds{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

// A lowered part of the pattern. Without `text` it matches no JSON string.
struct PatternNode {
  std::optional<std::string> text;
  int64_t num_positions = 0;
  bool begins = false, ends = false;  // contains the anchor ^ or $
  bool can_be_empty = false, repeats = false;
};

class PatternParser {
 public:
  PatternParser(const std::string& pattern, bool in_json)
      : rest_(pattern), size_(pattern.size()), in_json_(in_json) {}

  Result<PatternNode> parse() {
    MORACLE_TRY(PatternNode whole, alternatives(true));
    if (!rest_.empty()) return wrong("a '(' before each ')'");
    return whole;
  }

 private:
  PatternNode pattern_node(CharRanges ranges) const {
    ranges = in_json_ ? in_json_string(std::move(ranges)) : in_text(std::move(ranges));
    if (ranges.empty()) return {};
    return {class_text(ranges), 1};
  }
  Error wrong(std::string need) const {
    return {ErrorKind::kInvalidArgument, "", "", std::move(need),
            str("byte ", size_ - rest_.size(), " is \"", rest_.substr(0, 12), "\"")};
  }
  bool take(std::string_view mark) {
    if (!rest_.starts_with(mark)) return false;
    rest_.remove_prefix(mark.size());
    return true;
  }
  Result<uint32_t> next() {
    if (rest_.empty()) return wrong("an end of each escape and class");
    const Utf8Char next = first_char(rest_);
    if (next.state != Utf8Char::State::kWhole) return wrong("UTF-8");
    rest_.remove_prefix(next.length);
    return next.code;
  }

  Result<PatternNode> alternatives(bool at_start) {
    PatternNode all{.text = std::nullopt};
    do {
      MORACLE_TRY(const PatternNode one, sequence(at_start));
      if (one.text) all.text = all.text ? *all.text + "|" + *one.text : *one.text;
      all.num_positions = std::min(all.num_positions + one.num_positions, kManyPositions);
      all.begins |= one.begins;
      all.ends |= one.ends;
      all.can_be_empty |= one.can_be_empty;
      all.repeats |= one.repeats;
    } while (take("|"));
    return all;
  }

  Result<PatternNode> sequence(bool at_start) {
    PatternNode all{.text = "", .can_be_empty = true};
    bool is_empty = true;
    int64_t paths = 1;  // transitions into the next part: one more for each optional part before it
    while (!rest_.empty() && rest_[0] != '|' && rest_[0] != ')') {
      if (all.ends) return wrong("'$' only at the end of the pattern");
      if (take("^")) {
        if (!at_start || !is_empty) return wrong("'^' only at the start of the pattern");
        all.begins = true;
        continue;
      }
      if (take("$")) {
        all.ends = true;
        continue;
      }
      MORACLE_TRY(PatternNode one, atom(at_start && is_empty));
      MORACLE_CHECK(repeat(one));
      if (!one.text)
        all.text.reset();
      else if (all.text)
        *all.text += *one.text;
      paths = one.can_be_empty ? paths + 1 : 1;
      all.num_positions = std::min(all.num_positions + one.num_positions * paths, kManyPositions);
      all.begins |= one.begins;
      all.ends |= one.ends;
      all.can_be_empty &= one.can_be_empty;
      all.repeats |= one.repeats;
      is_empty = false;
    }
    return all;
  }

  Result<PatternNode> atom(bool at_start) {
    if (rest_[0] == '(') return group(at_start);
    if (take("[")) return char_class();
    if (take(".")) return pattern_node(complement(kLineEnds));
    if (rest_.find_first_of("*+?{}]") == 0)
      return wrong("something to repeat before each quantifier");
    if (rest_[0] == '\\') {
      MORACLE_TRY(CharRanges escape, escaped());
      return pattern_node(std::move(escape));
    }
    MORACLE_TRY(const uint32_t code, next());
    return pattern_node({{code, code}});
  }

  Result<PatternNode> group(bool at_start) {
    if (++depth_ > kMaxGroups) return wrong(str("at most ", kMaxGroups, " nested groups"));
    take("(");
    if (rest_.starts_with("?<") && !rest_.starts_with("?<=") && !rest_.starts_with("?<!"))
      rest_.remove_prefix(std::min(rest_.size(), rest_.find('>') + 1));
    else if (rest_.starts_with("?") && !take("?:"))
      return wrong("no lookahead, lookbehind or flags");
    MORACLE_TRY(PatternNode inner, alternatives(at_start));
    if (!take(")")) return wrong("a ')' for each '('");
    --depth_;
    if (inner.text) inner.text = "(?:" + *inner.text + ")";
    return inner;
  }

  // Reads two or four hexadecimal digits.
  Result<uint32_t> hex(size_t digits) {
    uint32_t code = 0;
    for (size_t i = 0; i < digits; ++i) {
      MORACLE_TRY(const uint32_t digit, next());
      const bool letter = (digit | 0x20) >= 'a' && (digit | 0x20) <= 'f';
      if (!letter && (digit < '0' || digit > '9')) return wrong("hexadecimal digits");
      code = code * 16 + (letter ? (digit | 0x20) - 'a' + 10 : digit - '0');
    }
    return code;
  }

  // Character set of an escape.
  Result<CharRanges> escaped() {
    const Error unknown = wrong("an escape such as \\d, \\w, \\s, \\n, \\x41, \\u0041 or \\.");
    take("\\");
    MORACLE_TRY(const uint32_t code, next());
    switch (code) {
      case 'd':
        return kDigitChars;
      case 'D':
        return complement(kDigitChars);
      case 'w':
        return kWordChars;
      case 'W':
        return complement(kWordChars);
      case 's':
        return kSpaceChars;
      case 'S':
        return complement(kSpaceChars);
      case 't':
        return CharRanges{{'\t', '\t'}};
      case 'n':
        return CharRanges{{'\n', '\n'}};
      case 'v':
        return CharRanges{{'\v', '\v'}};
      case 'f':
        return CharRanges{{'\f', '\f'}};
      case 'r':
        return CharRanges{{'\r', '\r'}};
      default:
        break;
    }
    if (code == 'x' || code == 'u') {
      MORACLE_TRY(const uint32_t value, hex(code == 'x' ? 2 : 4));
      if (value >= 0xD800 && value <= 0xDFFF) return wrong("a character itself, no surrogates");
      return CharRanges{{value, value}};
    }
    const bool is_word = code < 0x80 && std::isalnum(static_cast<int>(code)) != 0;
    if (is_word || code >= 0x80) return unknown;
    return CharRanges{{code, code}};
  }

  Result<CharRanges> class_item() {
    if (rest_.starts_with("\\")) {
      if (take("\\b")) return CharRanges{{'\b', '\b'}};
      return escaped();
    }
    MORACLE_TRY(const uint32_t code, next());
    return CharRanges{{code, code}};
  }

  Result<PatternNode> char_class() {
    const bool negated = take("^");
    CharRanges all;
    while (!take("]")) {
      MORACLE_TRY(CharRanges first, class_item());
      const bool is_one = first.size() == 1 && first[0].first == first[0].second;
      if (is_one && rest_.starts_with("-") && !rest_.starts_with("-]")) {
        take("-");
        MORACLE_TRY(const CharRanges last, class_item());
        if (last.size() != 1 || last[0].first != last[0].second || last[0].first < first[0].first)
          return wrong("ranges such as a-z in classes");
        first[0].second = last[0].first;
      }
      all.insert(all.end(), first.begin(), first.end());
    }
    return pattern_node(negated ? complement(std::move(all)) : std::move(all));
  }

  Result<int64_t> count() {
    int64_t value = 0;
    size_t digits = 0;
    for (; digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9'; ++digits) {
      value = std::min<int64_t>(value * 10 + (rest_[digits] - '0'), kMaxRepeat + 1);
    }
    if (digits == 0) return wrong("a quantifier such as {2}, {2,} or {2,5}");
    if (value > kMaxRepeat) return wrong(str("at most ", kMaxRepeat, " repeats"));
    rest_.remove_prefix(digits);
    return value;
  }

  Status repeat(PatternNode& node) {
    int64_t min = 1, max = 1;
    if (take("*")) {
      min = 0, max = -1;
    } else if (take("+")) {
      max = -1;
    } else if (take("?")) {
      min = 0;
    } else if (take("{")) {
      MORACLE_TRY(min, count());
      max = min;
      if (take(",")) {
        max = -1;
        if (!rest_.starts_with("}")) {
          MORACLE_TRY(max, count());
        }
      }
      if (!take("}") || (max >= 0 && max < min))
        return wrong("a quantifier such as {2}, {2,} or {2,5}");
    } else {
      return {};
    }
    take("?");  // a lazy quantifier accepts the same strings
    if (!rest_.empty() && std::string_view("*+?{").find(rest_[0]) != std::string_view::npos)
      return wrong("one quantifier");
    if (node.begins || node.ends) return wrong("no quantifier behind an anchor");
    const int64_t copies = std::max<int64_t>({min, max, 1});
    // Nested repeats are ambiguous, and the engine compiles every alternative. After an optional
    // copy, each copy has transitions to all later ones.
    const int64_t paths = copies == 1 ? 1 : node.can_be_empty ? copies : node.repeats ? 3 : 1;
    node.num_positions = std::min(node.num_positions * copies * paths, kManyPositions);
    node.can_be_empty |= min == 0;
    node.repeats = true;
    if (!node.text) {
      if (min == 0) node.text = "";
      return {};
    }
    *node.text += max < 0 ? str("{", min, ",}") : str("{", min, ",", max, "}");
    return {};
  }

  std::string_view rest_;
  const size_t size_;
  const bool in_json_;  // matches contain no character that JSON must escape
  int64_t depth_ = 0;
};

Result<SchemaPattern> lowered_pattern(const std::string& pattern, bool in_json) {
  if (pattern.size() > kMaxPatternBytes) {
    return Error{ErrorKind::kInvalidArgument, "", "", str("at most ", kMaxPatternBytes, " bytes"),
                 str("it has ", pattern.size())};
  }
  MORACLE_TRY(PatternNode whole, PatternParser(pattern, in_json).parse());
  if (whole.text) return SchemaPattern{*std::move(whole.text), whole.num_positions};
  return Error{ErrorKind::kInvalidArgument, "", "",
               in_json ? "a match that JSON can hold without escapes" : "a match", "there is none"};
}

}  // namespace

Result<SchemaPattern> lower_pattern(const std::string& pattern) {
  return lowered_pattern(pattern, /*in_json=*/true);
}

Result<SchemaPattern> lower_text_pattern(const std::string& pattern) {
  return lowered_pattern(pattern, /*in_json=*/false);
}

SchemaPattern length_pattern(int64_t min, int64_t max) {
  const std::string any = class_text(in_json_string(complement({})));
  const std::string full = str(any, "{", kMaxRepeat, "}");
  SchemaPattern pattern{"", std::min(std::max<int64_t>({min, max, 1}), kManyPositions)};
  if (pattern.num_positions >= kManyPositions) return pattern;  // above every limit
  int64_t rest = min;
  for (; rest > kMaxRepeat; rest -= kMaxRepeat) pattern.text += full;
  if (max < 0) {
    pattern.text += str(any, "{", rest, ",}");
    return pattern;
  }
  pattern.text += str(any, "{", rest, "}");
  // Split into blocks unambiguously: another block follows only after a full one.
  std::string ends;
  for (rest = max - min; rest > kMaxRepeat; rest -= kMaxRepeat) {
    pattern.text += str("(?:", any, "{0,", kMaxRepeat - 1, "}|", full);
    ends += ")";
  }
  pattern.text += str(any, "{0,", rest, "}", ends);
  return pattern;
}

SchemaPattern other_names(const std::vector<std::string>& names) {
  CharRanges firsts;
  for (const std::string& name : names) {
    if (name.empty()) continue;
    const uint32_t code = first_char(name).code;
    firsts.emplace_back(code, code);
  }
  return {class_text(in_json_string(complement(std::move(firsts)))) + length_pattern(0, -1).text,
          2};
}

}  // namespace moracle::serve
