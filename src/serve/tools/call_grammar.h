// A grammar of answers with tool calls, as a structural tag of the grammar engine.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "serve/tools/call_syntax.h"

namespace moracle::serve {

struct GrammarTool {
  /// `schema`: of lower_schema(); with kGemmaStyle: EBNF; empty with kMiniMaxM3Style: any
  /// arguments.
  std::string name, schema;
};

struct CallGrammar {
  const ToolFormat& format;
  const CallSyntax& syntax;
  std::vector<GrammarTool> tools;  ///< those that the answer may call
  bool is_required = false;        ///< the answer is calls; else text with calls in it
  bool is_single = false;          ///< at most one call
  /// Tags of reasoning that may come first; empty: none.
  std::string reasoning_open, reasoning_close;
};

/// JSON of the structural tag.
std::string structural_tag(const CallGrammar& grammar);

}  // namespace moracle::serve
