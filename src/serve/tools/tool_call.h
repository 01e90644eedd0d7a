// Calls of tools, and the tools that a request offers.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/json/json_field.h"

namespace moracle::serve {

struct ToolCall {
  std::string id;         ///< empty: the format has none
  std::string name;       ///< of an offered tool
  std::string arguments;  ///< text of a JSON object
};

/// The functions of "tools". Generated calls must name one of them.
class OfferedTools {
 public:
  /// Errors: no array of functions with names.
  static Result<OfferedTools> read(const JsonField& tools);
  bool has(const std::string& name) const { return texts_.contains(name); }
  /// Whether the tool's schema says that a parameter is a string. Formats without quotes need this
  /// to tell the text 5 from the number.
  bool is_text(const std::string& name, const std::string& parameter) const;

 private:
  std::map<std::string, std::set<std::string>> texts_;  // parameters that are strings, by function
};

}  // namespace moracle::serve
