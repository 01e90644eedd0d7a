// Converts the bodies of /v1/completions and /v1/chat/completions into jobs.
#pragma once

#include <nlohmann/json.hpp>

#include "base/json/json_field.h"
#include "serve/api/chat_prompt.h"
#include "serve/api/served_model.h"
#include "serve/engine/job.h"

namespace moracle::serve {

struct GenerationRequest {
  std::vector<Job> jobs;             ///< without sinks; `choices` jobs per prompt, in order
  int64_t choices = 1;               ///< per prompt
  std::vector<std::string> prompts;  ///< prompt texts, for `echo`
  std::string model;                 ///< "model" of the request
  bool is_chat = false;
  bool stream = false, include_usage = false;
  bool echo = false;
  std::shared_ptr<const ToolUse> tools;  ///< null: tool calls are not parsed
  std::string schema;  ///< result of lower_schema(), not yet compiled; empty: unconstrained
};

/// Parses a JSON object. Errors: those of parse_ordered_json; not an object.
Result<nlohmann::json> parse_body(const std::string& body);

/// Reads an array of token ids. Errors: another value, with its place.
Result<std::vector<int32_t>> read_token_ids(const JsonField& field);

/// Errors: fields of a wrong type or out of range; unsupported fields that would change the answer;
/// a prompt that does not fit in the context. `text` is the unparsed body. `progress` can cancel
/// tokenization.
Result<GenerationRequest> read_completion(const nlohmann::json& body, const std::string& text,
                                          const ServedModel& model, const Progress& progress = {});
Result<GenerationRequest> read_chat(const nlohmann::json& body, const std::string& text,
                                    const ServedModel& model, const Progress& progress = {});

}  // namespace moracle::serve
