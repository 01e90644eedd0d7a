// Shared helpers for parsing tool calls.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "serve/tools/tool_call.h"

namespace moracle::serve {

/// Keeps the model's argument order.
using CallJson = nlohmann::ordered_json;

/// Parses a whole text as JSON. Empty: invalid, as in parse_ordered_json.
std::optional<CallJson> parse_json(std::string_view text);
/// Makes a call. Empty: the tool is not offered, or `arguments` is not an object.
std::optional<ToolCall> make_call(std::string id, std::string name, const CallJson& arguments,
                                  const OfferedTools& tools);
/// A call id of nine letters and digits, as Mistral's templates require.
std::string new_call_id();
/// Length of the longest suffix of `text` that is a prefix of `tag`, but not all of it.
size_t open_end(std::string_view text, std::string_view tag);
/// Strips white space at both ends.
std::string_view trimmed(std::string_view text);

/// Cursor over the text of a tool call.
class CallCursor {
 public:
  explicit CallCursor(std::string_view rest) : rest_(rest) {}
  /// Consumes white space and `tag`. False: `tag` does not follow.
  bool take(std::string_view tag);
  /// Consumes the text before `tag`, and `tag`. Empty: `tag` is missing.
  std::optional<std::string_view> until(std::string_view tag);
  bool at_end() { return trimmed(rest_).empty(); }
  std::string_view rest() const { return rest_; }
  void skip(size_t bytes) { rest_.remove_prefix(bytes); }

 private:
  std::string_view rest_;
};

}  // namespace moracle::serve
