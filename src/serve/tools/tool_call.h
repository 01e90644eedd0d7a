// Tool calls, and the tools that a request offers.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/json/json_field.h"

namespace moracle::serve {

struct ToolCall {
  std::string id;         ///< empty: the format has no ids
  std::string name;       ///< name of an offered tool
  std::string arguments;  ///< JSON object as text
};

/// The request's "tools". Generated calls must name one of them.
class OfferedTools {
 public:
  /// Errors: not an array of functions with names.
  static Result<OfferedTools> read(const JsonField& tools);
  /// Adds a function with "name" and a schema of its parameters. Errors: no name.
  Status add(const JsonField& function, const char* parameters = "parameters");
  bool has(const std::string& name) const { return texts_.contains(name); }
  bool is_strict(const std::string& name) const { return strict_.contains(name); }
  /// True if some tool is strict.
  bool has_strict() const { return !strict_.empty(); }
  /// True if the tool's schema declares the parameter a string. Formats without quotes need this to
  /// tell the text 5 from the number 5.
  bool is_text(const std::string& name, const std::string& parameter) const;

 private:
  std::map<std::string, std::set<std::string>> texts_;  // string parameters, by function
  std::set<std::string> strict_;                        // functions
};

}  // namespace moracle::serve
