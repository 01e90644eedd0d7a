// Parts that several formats of tool calls share.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "serve/tools/tool_call.h"

namespace moracle::serve {

/// Arguments keep the order in which the model wrote them.
using CallJson = nlohmann::ordered_json;

/// The JSON value that makes up the whole text. Empty: see the errors of parse_ordered_json.
std::optional<CallJson> parse_json(std::string_view text);
/// Empty: not an offered tool, or no object.
std::optional<ToolCall> make_call(std::string id, std::string name, const CallJson& arguments,
                                  const OfferedTools& tools);
/// Without white space at both ends.
std::string_view trimmed(std::string_view text);

/// Reads a text from its start.
class CallCursor {
 public:
  explicit CallCursor(std::string_view rest) : rest_(rest) {}
  /// Skips white space, then `tag`. False: something else is there.
  bool take(std::string_view tag);
  /// The text before `tag`, which is skipped too. Empty: there is none.
  std::optional<std::string_view> until(std::string_view tag);
  bool at_end() { return trimmed(rest_).empty(); }
  std::string_view rest() const { return rest_; }
  void skip(size_t bytes) { rest_.remove_prefix(bytes); }

 private:
  std::string_view rest_;
};

}  // namespace moracle::serve
