#include "serve/api/generation_request.h"

#include "base/json/ordered_json.h"
#include "base/text.h"
#include "base/try.h"
#include "serve/api/job_fields.h"

namespace moracle::serve {
namespace {

using nlohmann::json;

constexpr int64_t kMaxTop = 20;
const std::string kNoFile;

Status add_prompt(const JsonField& body, const JsonField& prompt, const ServedModel& model,
                  const Job& fields, std::optional<int64_t> max_tokens, const Progress& progress,
                  GenerationRequest& request) {
  std::vector<int32_t> ids;
  std::string shown;
  if (prompt.value().is_string()) {
    shown = *prompt.text();
    MORACLE_TRY(ids, model.tokenizer.encode_prompt(shown, progress));
  } else {
    MORACLE_TRY(ids, read_token_ids(prompt));
  }
  MORACLE_CHECK(add_jobs(body, model, fields, ids, max_tokens, request));
  if (shown.empty()) {
    MORACLE_TRY(shown, model.tokenizer.decode(ids, true));
  }
  request.prompts.push_back(std::move(shown));
  return {};
}

Result<std::optional<int64_t>> read_max_tokens(const JsonField& field, int64_t min) {
  if (field.is_null()) return std::optional<int64_t>();
  MORACLE_TRY(const int64_t count, field.integer(min, int64_t{1} << 30));
  return std::optional(count);
}

}  // namespace

Result<json> parse_body(const std::string& body) {
  MORACLE_TRY(const nlohmann::ordered_json parsed, parse_ordered_json(body));
  if (parsed.is_object()) return json(parsed);
  return Error{ErrorKind::kBadFile, "", "body", "an object", "it is another value"};
}

// Check ids directly: one JsonField per id would take more memory than the parsed body.
Result<std::vector<int32_t>> read_token_ids(const JsonField& field) {
  if (!field.value().is_array()) return field.bad("an array");
  std::vector<int32_t> ids;
  ids.reserve(field.value().size());
  for (const json& value : field.value()) {
    const auto id = JsonField(value, field.file()).integer(0, INT32_MAX);
    if (!id) {
      Error error = id.error();
      error.place = str(field.place(), '[', ids.size(), ']');
      return error;
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

Result<GenerationRequest> read_completion(const json& value, const std::string& text,
                                          const ServedModel& model, const Progress& progress) {
  const JsonField body(value, kNoFile);
  GenerationRequest request;
  for (const char* key : {"tools", "reasoning_effort"}) {
    if (!body[key].value().empty()) return body[key].unsupported("a chat request");
  }
  MORACLE_TRY(Job fields, read_job_fields(body, text, model, request));
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
      MORACLE_CHECK(add_prompt(body, item, model, fields, max_tokens, progress, request));
    }
  } else if (prompt.value().is_string() || prompt.value().is_array()) {
    MORACLE_CHECK(add_prompt(body, prompt, model, fields, max_tokens, progress, request));
  } else {
    return prompt.bad("a string, an array of token ids, or an array of such prompts");
  }
  return request;
}

Result<GenerationRequest> read_chat(const json& value, const std::string& text,
                                    const ServedModel& model, const Progress& progress) {
  const JsonField body(value, kNoFile);
  GenerationRequest request;
  request.is_chat = true;
  MORACLE_TRY(Job fields, read_job_fields(body, text, model, request));
  fields.continues_prompt = false;
  MORACLE_TRY(const bool scores, body["logprobs"].flag_or(false));
  if (scores) fields.num_top = 0;
  if (const JsonField top = body["top_logprobs"]; !top.is_null() && top.value() != 0) {
    MORACLE_TRY(fields.num_top, top.integer(0, kMaxTop));
    if (!scores) return body["logprobs"].bad("true where top_logprobs is set");
  }
  const char* const key =
      body["max_completion_tokens"].is_null() ? "max_tokens" : "max_completion_tokens";
  MORACLE_TRY(const auto max_tokens, read_max_tokens(body[key], 1));
  MORACLE_TRY(ChatPrompt prompt, read_chat_prompt(body, text, model));
  if (prompt.tools) fields.shown_ids = special_tags(prompt.tools->format, model.tokenizer);
  MORACLE_TRY(std::vector<int32_t> ids, model.tokenizer.encode(prompt.text, progress));
  MORACLE_CHECK(add_jobs(body, model, fields, std::move(ids), max_tokens, request));
  request.prompts.push_back(std::move(prompt.text));
  request.tools = std::move(prompt.tools);
  return request;
}

}  // namespace moracle::serve
