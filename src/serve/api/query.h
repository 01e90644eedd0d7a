// The query of a request's target.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace moracle::serve {

/// Decodes percent escapes: "a%2Fb" becomes "a/b". Keeps a '%' without two hexadecimal digits.
std::string without_percent(std::string_view text);
/// The value of `key` in a query such as "limit=5&order=asc". Empty: absent.
std::optional<std::string> query_value(std::string_view query, std::string_view key);

}  // namespace moracle::serve
