// Reads bodies of /v1/completions.
#include "base/try.h"
#include "serve/dialects/dialects.h"
#include "serve/dialects/openai_fields.h"

namespace moracle::serve {
namespace {

const std::string kCompletionFile;

Status add_prompt(const JsonField& prompt, const ServedModel& model, const Job& fields,
                  std::optional<int64_t> max_tokens, const Progress& progress,
                  GenerationRequest& request) {
  std::vector<int32_t> ids;
  std::string shown;
  if (prompt.value().is_string()) {
    shown = *prompt.text();
    MORACLE_TRY(ids, model.tokenizer.encode_prompt(shown, progress));
  } else {
    MORACLE_TRY(ids, read_token_ids(prompt));
  }
  MORACLE_CHECK(add_jobs("prompt", model, fields, ids, max_tokens, request));
  if (shown.empty()) {
    MORACLE_TRY(shown, model.tokenizer.decode(ids, true));
  }
  request.prompts.push_back(std::move(shown));
  return {};
}

}  // namespace

Result<GenerationRequest> read_completion(const nlohmann::json& value, const std::string& text,
                                          const ServedModel& model, const Progress& progress) {
  const JsonField body(value, kCompletionFile);
  GenerationRequest request;
  for (const char* key : {"tools", "reasoning_effort", "thinking_token_budget"}) {
    if (!body[key].value().empty()) return body[key].unsupported("a chat request");
  }
  MORACLE_TRY(Job fields, read_openai_fields(body, text, model, request));
  MORACLE_TRY(request.echo, body["echo"].flag_or(false));
  if (const JsonField logprobs = body["logprobs"];
      !logprobs.is_null() && logprobs.value() != false) {
    MORACLE_TRY(fields.num_top, logprobs.integer(0, kMaxTop));
  }
  fields.scores_prompt = request.echo && fields.num_top;
  MORACLE_TRY(auto max_tokens, read_max_tokens(body["max_tokens"], request.echo ? 0 : 1));
  if (!max_tokens && !model.generation.max_tokens) max_tokens = 16;
  const JsonField prompt = body["prompt"];
  const bool is_array = prompt.value().is_array() && !prompt.value().empty();
  if (is_array && !prompt.value()[0].is_number()) {
    MORACLE_TRY(const std::vector<JsonField> items, prompt.items());
    for (const JsonField& item : items) {
      if (!item.value().is_string() && !item.value().is_array())
        return item.bad("a string or an array of token ids");
      MORACLE_CHECK(add_prompt(item, model, fields, max_tokens, progress, request));
    }
  } else if (prompt.value().is_string() || prompt.value().is_array()) {
    MORACLE_CHECK(add_prompt(prompt, model, fields, max_tokens, progress, request));
  } else {
    return prompt.bad("a string, an array of token ids, or an array of such prompts");
  }
  return request;
}

}  // namespace moracle::serve
