#include "base/named_patterns.h"

#include <algorithm>

#include "base/text.h"

namespace moracle {

// Greedy matching with one resume point. One is enough, because a later star is only reached with
// more text consumed.
bool matches_pattern(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = pattern.npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return std::all_of(pattern.begin() + static_cast<ptrdiff_t>(p), pattern.end(),
                     [](char c) { return c == '*'; });
}

Result<std::vector<NamedPattern>> parse_named_patterns(std::string_view text, const char* option) {
  std::vector<NamedPattern> entries;
  if (text.find('=') == text.npos) {
    entries.push_back({"", std::string(text)});
    return entries;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view entry = text.substr(begin, end - begin);
    const size_t equals = entry.rfind('=');
    if (equals == 0) {
      return Error{ErrorKind::kInvalidArgument, "", option,
                   "pattern=name entries, separated by commas",
                   str("'", entry, "' has no pattern")};
    }
    const bool named = equals != entry.npos;
    entries.push_back({std::string(named ? entry.substr(0, equals) : ""),
                       std::string(named ? entry.substr(equals + 1) : entry)});
    begin = end + 1;
  }
  return entries;
}

}  // namespace moracle
