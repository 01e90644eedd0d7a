// Renders messages and tools into a prompt with the model's chat template.
#pragma once

#include <memory>

#include "serve/api/api_error.h"
#include "serve/model_set/served_model.h"

namespace moracle::serve {

/// Format and tools for parsing the tool calls of an answer.
struct ToolUse {
  const ToolFormat& format;
  OfferedTools tools;
  bool parallel = true;  ///< false: the answer ends after its first call
};

/// Which tools an answer must call.
struct ToolChoice {
  enum class Kind { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name;   ///< of kNamed
  std::string place;  ///< the field, for errors
};

/// A chat request of any dialect, in the form that chat templates take.
struct ChatRequest {
  Json messages = Json::array();
  Json tools = Json::array();  ///< {"type": "function", "function": {…}}
  OfferedTools offered;        ///< the same tools, checked
  ToolChoice choice;
  bool parallel_calls = true;
  Json variables = Json::object();  ///< further variables of the template
  bool add_generation_prompt = true;
};

/// What the text of an answer may hold beside text.
struct AnswerForm {
  std::shared_ptr<const ToolUse> tools;        ///< null: tool calls are not parsed
  const ReasoningFormat* reasoning = nullptr;  ///< null: reasoning is not parsed
  bool is_reasoning = false;                   ///< the prompt has opened the reasoning
};

struct ChatPrompt {
  std::string text;
  AnswerForm form;
  GrammarText grammar;  ///< of the calls; empty: unconstrained
};

/// Errors: template errors; tools that the template ignores; calls that must be constrained where
/// the server has no grammar of them.
Result<ChatPrompt> make_prompt(const ChatRequest& request, const ServedModel& model);

/// Template variables of a reasoning effort. Errors: an unknown effort.
Result<Json> read_effort(const JsonField& effort);

}  // namespace moracle::serve
