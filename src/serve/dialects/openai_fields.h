// Fields that completions and chat completions share.
#pragma once

#include "serve/dialects/job_fields.h"

namespace moracle::serve {

/// Largest value of "top_logprobs".
inline constexpr int64_t kMaxTop = 20;

/// As read_job_fields, with stop strings, n, stream_options and response_format. `text` is the
/// unparsed body. Errors: also unsupported fields that would change the answer.
Result<Job> read_openai_fields(const JsonField& body, const std::string& text,
                               const ServedModel& model, GenerationRequest& request);

}  // namespace moracle::serve
