#include "serve/dialects/openai_fields.h"

#include "base/json/ordered_json.h"
#include "base/try.h"
#include "serve/dialects/structured_outputs.h"

namespace moracle::serve {
namespace {

constexpr int64_t kMaxChoices = 64;

Status refuse_unsupported(const JsonField& body) {
  constexpr const char* kFields[] = {"suffix",
                                     "functions",
                                     "guided_whitespace_pattern",
                                     "structural_tag",
                                     "prompt_logprobs",
                                     "audio",
                                     "use_beam_search",
                                     "logits_processors",
                                     "prompt_embeds",
                                     "allowed_token_ids",
                                     "include_stop_str_in_output",
                                     "truncate_prompt_tokens",
                                     "continue_final_message",
                                     "chat_template",
                                     "documents",
                                     "reasoning",
                                     "thinking_budget",
                                     "web_search_options"};
  MORACLE_CHECK(refuse_fields(body, kFields));
  for (const char* key : {"enable_thinking", "thinking", "verbosity"}) {
    if (!body[key].is_null())
      return body[key].unsupported(
          "no value; chat_template_kwargs takes the variables of the chat template");
  }
  if (body["skip_special_tokens"].value() == false)
    return body["skip_special_tokens"].unsupported("true: texts contain no special tokens");
  const JsonField best = body["best_of"];
  if (!best.is_null() && best.value() != 1 && best.value() != body["n"].value())
    return best.unsupported("the value of n");
  return {};
}

// Reads "response_format": absent, text, json_object or json_schema.
Result<std::string> read_response_format(const JsonField& body, const Json& ordered,
                                         const ServedModel& model) {
  const JsonField format = body["response_format"];
  if (format.is_null() || format["type"].value() == "text") return std::string();
  const bool has_tools = !body["tools"].value().empty() && body["tool_choice"].value() != "none";
  const Json& given = ordered["response_format"];
  const bool has_schema = given.contains("json_schema") && given["json_schema"].is_object();
  return read_format({.format = format,
                      .holder = format["json_schema"],
                      .ordered = has_schema ? given["json_schema"] : Json::object(),
                      .has_tools = has_tools},
                     body, model);
}

}  // namespace

Result<Job> read_openai_fields(const JsonField& body, const std::string& text,
                               const ServedModel& model, GenerationRequest& request) {
  MORACLE_CHECK(refuse_unsupported(body));
  MORACLE_TRY(Job job, read_job_fields(body, model, request));
  MORACLE_CHECK(read_stop_strings(body["stop"], job.stop_strings));
  if (!body["response_format"].is_null() || has_structured_outputs(body)) {
    // The answer's members follow the schema's order, which parsing into `body` has lost.
    MORACLE_TRY(const Json ordered, parse_ordered_json(text));
    MORACLE_TRY(request.grammar.text, read_response_format(body, ordered, model));
    request.grammar.place = "response_format";
    MORACLE_CHECK(add_structured_outputs(body, ordered, model, request.grammar));
  }
  if (!body["n"].is_null()) {
    MORACLE_TRY(request.choices, body["n"].integer(1, kMaxChoices));
  }
  const JsonField stream_options = body["stream_options"];
  if (!stream_options.is_null() && !stream_options.is_object())
    return stream_options.bad("an object");
  MORACLE_TRY(request.include_usage, stream_options["include_usage"].flag_or(false));
  return job;
}

}  // namespace moracle::serve
