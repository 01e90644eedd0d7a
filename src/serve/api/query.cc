#include "serve/api/query.h"

#include <algorithm>
#include <charconv>

namespace moracle::serve {

std::string without_percent(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    const char* const digits = text.data() + i + 1;
    const bool is_code = text[i] == '%' && i + 2 < text.size() &&
                         std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2;
    plain += is_code ? static_cast<char>(code) : text[i];
    if (is_code) i += 2;
  }
  return plain;
}

std::optional<std::string> query_value(std::string_view query, std::string_view key) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view one = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    const size_t equal = std::min(one.find('='), one.size());
    if (without_percent(one.substr(0, equal)) == key)
      return without_percent(one.substr(std::min(equal + 1, one.size())));
  }
  return {};
}

}  // namespace moracle::serve
