// Fields that completions and chat completions share.
#pragma once

#include "base/json/json_field.h"
#include "serve/api/generation_request.h"

namespace moracle::serve {

/// Reads sampling, penalties, stop strings, n, seed, stream and the adapter into `request`, and
/// into a job without a prompt. Missing fields default to generation_config.json, as in `moracle
/// run`. `text` is the unparsed body.
Result<Job> read_job_fields(const JsonField& body, const std::string& text,
                            const ServedModel& model, GenerationRequest& request);

/// Checks the prompt's ids and length, sets max_tokens, and adds one job per choice.
Status add_jobs(const JsonField& body, const ServedModel& model, const Job& fields,
                std::vector<int32_t> prompt, std::optional<int64_t> max_tokens,
                GenerationRequest& request);

}  // namespace moracle::serve
