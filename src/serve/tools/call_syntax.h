// The exact text around the calls of a template, found by rendering two probe calls. A grammar
// needs it to the byte.
#pragma once

#include <optional>
#include <string>

#include "serve/tools/tool_format.h"

namespace moracle::serve {

/// Ids of the probe calls: this text and a digit.
inline constexpr std::string_view kProbeId = "abcdef12";

/// An answer with calls is: head NAME middle ARGUMENTS (between NAME middle ARGUMENTS)* tail.
struct CallSyntax {
  std::string head, middle, between, tail;
  bool repeats = false;  ///< the template prints several calls in one answer
};

/// `turn`: an answer with one call of `name`, or with two.
std::optional<CallSyntax> find_call_syntax(const ToolFormat& format, std::string_view turn,
                                           std::string_view name);

}  // namespace moracle::serve
