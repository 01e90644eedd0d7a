// Finds the start of calls and their parameters in text that is still growing.
#pragma once

#include <optional>
#include <string>

#include "serve/tools/tool_format.h"

namespace moracle::serve {

/// The text of a call before its arguments.
struct CallHead {
  std::string id, name;  ///< id: empty if the format has none
  size_t size = 0;       ///< bytes before the arguments
};

/// How far a search for a call has come in a growing text.
struct HeadSearch {
  size_t searched = 0;         ///< bytes without the next tag
  std::optional<size_t> name;  ///< where the name of a tagged call begins
};

/// Finds the first call in `text`. `search` begins empty, and goes on where the last one ended.
/// Empty: none yet.
std::optional<CallHead> find_call_head(const ToolFormat& format, std::string_view text,
                                       HeadSearch& search);

/// A parameter between tags, or the end of the call.
struct TaggedStep {
  size_t size = 0;      ///< bytes of the text; 0: more text is needed
  bool is_end = false;  ///< the call ends
  std::string member;   ///< "KEY":VALUE in JSON
};

/// Reads the start of `text`. `searched`: bytes without the end of a parameter.
TaggedStep read_tagged_step(const ToolFormat& format, std::string_view text,
                            const std::string& name, const OfferedTools& tools, size_t searched);

}  // namespace moracle::serve
