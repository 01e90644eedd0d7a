#include "base/regex/regex_properties.h"

#include <oniguruma.h>

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "base/regex/unicode_tables.h"

namespace moracle {
namespace {

using enum UnicodeCategory;

// Names are as Oniguruma compares them: lower case, without spaces and underscores.
struct OwnProperty {
  const char* name;    // in Oniguruma
  const char* simple;  // in patterns
  const char* full;
  std::vector<UnicodeCategory> categories;
};
const OwnProperty kProperties[] = {
    {"moraclel", "l", "letter", {kLu, kLl, kLt, kLm, kLo}},
    {"moraclelu", "lu", "uppercaseletter", {kLu}},
    {"moraclell", "ll", "lowercaseletter", {kLl}},
    {"moraclelt", "lt", "titlecaseletter", {kLt}},
    {"moraclelm", "lm", "modifierletter", {kLm}},
    {"moraclelo", "lo", "otherletter", {kLo}},
    {"moraclem", "m", "mark", {kMn, kMc, kMe}},
    {"moraclemn", "mn", "nonspacingmark", {kMn}},
    {"moraclen", "n", "number", {kNd, kNl, kNo}},
    {"moraclend", "nd", "decimalnumber", {kNd}},
    {"moraclenl", "nl", "letternumber", {kNl}},
    {"moracleno", "no", "othernumber", {kNo}},
    {"moraclep", "p", "punctuation", {kP}},
    {"moracles", "s", "symbol", {kS}},
};
// Further properties of this project: Oniguruma's word characters, scripts and the steps of
// pre-tokenizers.
constexpr const char *kWord = "moracleword", *kHan = "moraclehan",
                     *kPunctuation = "moraclepunctuationstep", *kDigits = "moracledigitsstep";

// Word characters that have another category: connectors, circled letters, and what Oniguruma adds.
const std::vector<UnicodeRange> kOtherWords = {
    {0x5F, 0x5F},       {0xB2, 0xB3},       {0xB9, 0xB9},       {0xBC, 0xBE},     {0x203F, 0x2040},
    {0x2054, 0x2054},   {0x24B6, 0x24E9},   {0xFE33, 0xFE34},   {0xFE4D, 0xFE4F}, {0xFF3F, 0xFF3F},
    {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189},
};

// Oniguruma keeps the pointer: a count, then the first and last character of each range.
void define(const char* name, std::vector<UnicodeRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<OnigCodePoint> codes{0};
  for (const UnicodeRange& range : ranges) {
    if (codes.size() > 1 && codes.back() + 1 >= range.first) {
      codes.back() = std::max<OnigCodePoint>(codes.back(), range.last);
    } else {
      codes.push_back(range.first);
      codes.push_back(range.last);
    }
  }
  codes.front() = static_cast<OnigCodePoint>(codes.size() / 2);
  auto* const kept = new OnigCodePoint[codes.size()];  // lives as long as the process
  std::copy(codes.begin(), codes.end(), kept);
  onig_unicode_define_user_property(name, kept);
}

std::vector<UnicodeRange> ranges_of(const std::vector<UnicodeCategory>& categories) {
  const auto& starts = unicode_categories();
  std::vector<UnicodeRange> ranges;
  for (size_t i = 0; i < starts.size(); ++i) {
    if (std::find(categories.begin(), categories.end(), starts[i].category) == categories.end())
      continue;
    const uint32_t end = i + 1 < starts.size() ? starts[i + 1].first : 0x110000;
    ranges.push_back({starts[i].first, end - 1});
  }
  return ranges;
}

// The name of a property in this project's tables; empty if the tables lack it.
std::string_view own_name(std::string_view written) {
  std::string plain;
  for (const char c : written) {
    if (c != ' ' && c != '_' && c != '-')
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const OwnProperty& property : kProperties) {
    if (plain == property.simple || plain == property.full) return property.name;
  }
  if (plain == "han") return kHan;
  for (const std::string_view name : {kPunctuation, kDigits}) {
    if (plain == name) return name;
  }
  return {};
}

// Whether an option such as (?D) gives \d or \w a meaning of ASCII.
bool has_ascii_options(std::string_view pattern) {
  for (size_t at = pattern.find("(?"); at != pattern.npos; at = pattern.find("(?", at + 2)) {
    for (size_t i = at + 2; i < pattern.size(); ++i) {
      const char c = pattern[i];
      if (c == 'D' || c == 'W' || c == 'P') return true;
      if (c != '-' && std::isalpha(static_cast<unsigned char>(c)) == 0) break;
    }
  }
  return false;
}

}  // namespace

void define_own_properties() {
  for (const OwnProperty& property : kProperties)
    define(property.name, ranges_of(property.categories));
  std::vector<UnicodeRange> words = ranges_of({kLu, kLl, kLt, kLm, kLo, kMn, kMc, kMe, kNd, kNl});
  words.insert(words.end(), kOtherWords.begin(), kOtherWords.end());
  define(kWord, std::move(words));
  define(kHan, unicode_han());
  define(kPunctuation, punctuation_step());
  define(kDigits, digits_step());
}

std::string with_own_properties(std::string_view pattern) {
  if (has_ascii_options(pattern)) return std::string(pattern);
  std::string out;
  for (size_t at = 0; at < pattern.size();) {
    const std::string_view rest = pattern.substr(at);
    if (rest[0] != '\\' || rest.size() < 2) {
      out += rest[0];
      ++at;
      continue;
    }
    const char letter = rest[1];
    size_t taken = 2;
    std::string_view name;
    bool inverted = letter == 'P' || letter == 'D' || letter == 'W';
    if (letter == 'd' || letter == 'D') name = "moraclend";
    if (letter == 'w' || letter == 'W') name = kWord;
    const size_t close = rest.find('}');
    if ((letter == 'p' || letter == 'P') && rest.substr(2).starts_with('{') && close != rest.npos) {
      const bool is_inverse = rest.substr(3).starts_with('^');
      const size_t begin = is_inverse ? 4 : 3;
      name = own_name(rest.substr(begin, close - begin));
      inverted = inverted != is_inverse;
      if (!name.empty()) taken = close + 1;
    }
    if (name.empty()) {
      out += rest.substr(0, taken);
    } else {
      out += inverted ? "\\P{" : "\\p{";
      out += name;
      out += '}';
    }
    at += taken;
  }
  return out;
}

}  // namespace moracle
