// A generation request, the same for all dialects: jobs, and what the reply needs.
#pragma once

#include <nlohmann/json.hpp>

#include "base/json/json_field.h"
#include "serve/dialects/chat_prompt.h"
#include "serve/engine/job.h"
#include "serve/model_set/served_model.h"

namespace moracle::serve {

/// A path's form of requests, replies and events.
enum class Dialect {
  kCompletions,  ///< /v1/completions
  kChat,         ///< /v1/chat/completions
  kResponses,    ///< /v1/responses
  kMessages,     ///< /v1/messages
};

struct GenerationRequest {
  Dialect dialect = Dialect::kCompletions;
  std::vector<Job> jobs;             ///< without sinks; `choices` jobs per prompt, in order
  int64_t choices = 1;               ///< per prompt
  std::vector<std::string> prompts;  ///< prompt texts, for `echo`
  std::string model;                 ///< "model" of the request
  bool stream = false, include_usage = false;
  bool echo = false;
  AnswerForm form;
  GrammarText grammar;         ///< not yet compiled; empty: unconstrained
  bool fills_context = false;  ///< the context limits the answer, not the request
  Json reply_fields;           ///< responses: fields that the reply repeats
  Json items;                  ///< responses: all input items, to store; null: not stored
};

/// Parses a JSON object. Errors: those of parse_ordered_json; not an object.
Result<nlohmann::json> parse_body(const std::string& body);

/// Reads an array of token ids. Errors: another value, with its place.
Result<std::vector<int32_t>> read_token_ids(const JsonField& field);

}  // namespace moracle::serve
