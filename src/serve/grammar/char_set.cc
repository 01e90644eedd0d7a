#include "serve/grammar/char_set.h"

#include <algorithm>
#include <cstdio>

namespace moracle::serve {
namespace {

constexpr uint32_t kLast = 0x10FFFF;
// Characters that JSON must escape, and surrogates, which UTF-8 cannot encode.
const CharRanges kNotInJson{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0xD800, 0xDFFF}};

CharRanges joined(CharRanges ranges) {
  std::sort(ranges.begin(), ranges.end());
  CharRanges out;
  for (const auto& range : ranges) {
    if (!out.empty() && range.first <= out.back().second + 1)
      out.back().second = std::max(out.back().second, range.second);
    else
      out.push_back(range);
  }
  return out;
}

std::string escaped(uint32_t code) {
  char text[16];
  std::snprintf(text, sizeof text, "\\u{%X}", code);
  return text;
}

}  // namespace

CharRanges complement(CharRanges ranges) {
  CharRanges out;
  uint32_t next = 0;
  for (const auto& [first, last] : joined(std::move(ranges))) {
    if (first > next) out.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLast) out.emplace_back(next, kLast);
  return out;
}

CharRanges in_json_string(CharRanges ranges) {
  CharRanges others = complement(std::move(ranges));
  others.insert(others.end(), kNotInJson.begin(), kNotInJson.end());
  return complement(std::move(others));
}

CharRanges in_text(CharRanges ranges) {
  CharRanges others = complement(std::move(ranges));
  others.emplace_back(0xD800, 0xDFFF);
  return complement(std::move(others));
}

std::string class_text(const CharRanges& ranges) {
  std::string text = "[";
  for (const auto& [first, last] : ranges) {
    text += escaped(first);
    if (last > first) text += "-" + escaped(last);
  }
  return text + "]";
}

}  // namespace moracle::serve
