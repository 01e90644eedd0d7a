// Detects how a chat template handles tools by rendering probes, not by the model's name.
#pragma once

#include "moracle/text.h"
#include "serve/tools/call_syntax.h"

namespace moracle::serve {

struct ToolDialect {
  bool takes_tools = false;            ///< the prompt lists offered tools
  const ToolFormat* format = nullptr;  ///< null: the template writes calls in an unknown format
  std::optional<CallSyntax> syntax;    ///< of `format`; empty: calls cannot be constrained
  bool arguments_as_text = false;      ///< arguments are JSON text, not an object
  bool empty_content = true;           ///< a call without text has content "" instead of null
};

/// Renders a probe call in each message form, and takes the first that the template prints. Then
/// finds the format that parses the printed call.
ToolDialect find_dialect(const ChatTemplate& chat);

}  // namespace moracle::serve
