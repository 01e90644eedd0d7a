// What a chat template does with tools. Nothing is guessed from the model's name.
#pragma once

#include "moracle/text.h"
#include "serve/tools/tool_format.h"

namespace moracle::serve {

struct ToolDialect {
  bool takes_tools = false;            ///< the prompt shows offered tools
  const ToolFormat* format = nullptr;  ///< null: the template writes calls in another form
  bool arguments_as_text = false;      ///< the template wants JSON text instead of an object
  bool empty_content = true;           ///< a call without text has the content "" instead of none
};

/// Renders a conversation with a call in each form, and takes the first form that the template
/// shows. Looks for the format that reads the same call in the result.
ToolDialect find_dialect(const ChatTemplate& chat);

}  // namespace moracle::serve
