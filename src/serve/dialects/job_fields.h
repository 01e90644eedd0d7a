// Fields that all dialects share.
#pragma once

#include <span>

#include "serve/dialects/generation_request.h"

namespace moracle::serve {

/// Reads sampling, penalties, stop ids, seed, stream and the adapter into `request`, and into a job
/// without a prompt. Missing fields default to generation_config.json, as in `moracle run`.
Result<Job> read_job_fields(const JsonField& body, const ServedModel& model,
                            GenerationRequest& request);
/// Reads a string or an array of strings. Keeps `stops` if the field is missing.
Status read_stop_strings(const JsonField& field, std::vector<std::string>& stops);
/// Empty: the field is missing.
Result<std::optional<int64_t>> read_max_tokens(const JsonField& field, int64_t min);
/// Errors: a field that is present and not off (false, 0, empty or "none").
Status refuse_fields(const JsonField& body, std::span<const char* const> keys);

/// The format of an answer, as a dialect has it.
struct FormatField {
  JsonField format;        ///< has "type": text, json_object or json_schema
  JsonField holder;        ///< has "schema" and "strict"
  const Json& ordered;     ///< `holder` with the order of its members
  bool has_tools = false;  ///< the answer may hold calls
};
/// Returns the lowered schema; empty: unconstrained. Errors: those of lower_schema; a build without
/// the grammar engine; a format beside tools.
Result<std::string> read_format(const FormatField& field, const JsonField& body,
                                const ServedModel& model);

/// Checks the prompt's ids and length, sets max_tokens, and adds one job per choice. `place` names
/// the prompt in errors. Completions and chats that leave too few tokens for max_tokens are
/// rejected; the other dialects get the rest of the context.
Status add_jobs(const char* place, const ServedModel& model, const Job& fields,
                std::vector<int32_t> prompt, std::optional<int64_t> max_tokens,
                GenerationRequest& request);
/// Largest number of tokens of an answer's reasoning. Empty: the field is missing.
Result<std::optional<int64_t>> read_reasoning_budget(const JsonField& field,
                                                     const ServedModel& model);
/// As add_jobs, for a rendered chat prompt. `budget`: of the reasoning.
Status add_chat_jobs(const char* place, const ServedModel& model, Job fields, ChatPrompt prompt,
                     std::optional<int64_t> max_tokens, std::optional<int64_t> budget,
                     const Progress& progress, GenerationRequest& request);

}  // namespace moracle::serve
