#include "serve/dialects/job_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>

#include "base/text.h"
#include "base/try.h"
#include "models/generation/logit_edits.h"
#include "serve/grammar/schema.h"

namespace moracle::serve {
namespace {

constexpr size_t kMaxStops = 16, kMaxStopBytes = 1024, kMaxIds = 4096, kMaxSaltBytes = 256;
constexpr size_t kMaxBadWords = 256;

// Reads a finite number in [min, max]. Keeps `value` if the field is missing.
Status read_number(const JsonField& body, const char* key, double min, double max, float& value) {
  const JsonField field = body[key];
  if (field.is_null()) return {};
  MORACLE_TRY(const double number, field.number());
  if (!(number >= min && number <= max)) return field.bad(str("a number from ", min, " to ", max));
  value = static_cast<float>(number);
  return {};
}

Status read_sampling(const JsonField& body, SamplingOptions& sampling) {
  MORACLE_CHECK(read_number(body, "temperature", 0, 1e6, sampling.temperature));
  MORACLE_CHECK(read_number(body, "min_p", 0, 1, sampling.min_p));
  MORACLE_CHECK(read_number(body, "top_p", 0, 1, sampling.top_p));
  if (sampling.top_p == 0) return body["top_p"].bad("a number above 0, up to 1");
  MORACLE_CHECK(read_number(body, "typical_p", 0, 1, sampling.typical_p));
  if (sampling.typical_p == 0) return body["typical_p"].bad("a number above 0, up to 1");
  MORACLE_CHECK(read_number(body, "xtc_probability", 0, 1, sampling.xtc_probability));
  MORACLE_CHECK(read_number(body, "xtc_threshold", 0, 1, sampling.xtc_threshold));
  if (!body["top_k"].is_null()) {
    MORACLE_TRY(const int64_t top_k, body["top_k"].integer(-1, INT32_MAX));
    sampling.top_k = std::max<int64_t>(top_k, 0);
  }
  if (body["seed"].is_null()) {
    sampling.seed = std::random_device()();
  } else {
    MORACLE_TRY(const int64_t seed, body["seed"].integer(INT64_MIN, INT64_MAX));
    sampling.seed = static_cast<uint64_t>(seed);
  }
  return {};
}

Status read_count(const JsonField& body, const char* key, int64_t& value) {
  if (body[key].is_null()) return {};
  MORACLE_TRY(value, body[key].integer(0, INT32_MAX));
  return {};
}

// Reads an array of token ids. Keeps `ids` if the field is missing.
Status read_ids(const JsonField& field, int64_t vocab_size, std::vector<int32_t>& ids) {
  if (field.is_null()) return {};
  MORACLE_TRY(ids, read_token_ids(field));
  if (ids.size() > kMaxIds) return field.bad(str("at most ", kMaxIds, " token ids"));
  const auto is_unknown = [&](int32_t id) { return id >= vocab_size; };
  if (std::any_of(ids.begin(), ids.end(), is_unknown))
    return field.bad(str("token ids from 0 to ", vocab_size - 1));
  return {};
}

// Reads a string or an array of strings. Keeps `texts` if the field is missing.
Status read_texts(const JsonField& field, size_t max, std::vector<std::string>& texts) {
  if (field.is_null()) return {};
  texts.clear();
  if (field.value().is_string()) {
    texts.push_back(*field.text());
  } else {
    MORACLE_TRY(const std::vector<JsonField> items, field.items());
    if (items.size() > max) return field.bad(str("at most ", max, " strings"));
    for (const JsonField& item : items) {
      MORACLE_TRY(std::string text, item.text());
      texts.push_back(std::move(text));
    }
  }
  for (const std::string& text : texts) {
    if (text.empty() || text.size() > kMaxStopBytes)
      return field.bad(str("strings of 1 to ", kMaxStopBytes, " bytes"));
  }
  return {};
}

Status read_bad_words(const JsonField& field, const Tokenizer& tokenizer, LogitEdits& edits) {
  if (field.is_null()) return {};
  std::vector<std::string> words;
  MORACLE_CHECK(read_texts(field, kMaxBadWords, words));
  edits.bad_words_ids.clear();
  for (const std::string& word : words) {
    MORACLE_TRY(const auto runs, runs_of_word(tokenizer, word));
    edits.bad_words_ids.insert(edits.bad_words_ids.end(), runs.begin(), runs.end());
  }
  return {};
}

// DRY, in the names of llama.cpp. Without dry_multiplier it is off.
Status read_dry(const JsonField& body, const ServedModel& model, DryOptions& dry) {
  MORACLE_CHECK(read_number(body, "dry_multiplier", 0, 100, dry.multiplier));
  MORACLE_CHECK(read_number(body, "dry_base", 1, 100, dry.base));
  const auto read = [&](const char* key, int64_t min, int64_t& value) -> Status {
    if (body[key].is_null()) return {};
    MORACLE_TRY(value, body[key].integer(min, INT32_MAX));
    return {};
  };
  MORACLE_CHECK(read("dry_allowed_length", 1, dry.allowed_length));
  MORACLE_CHECK(read("dry_penalty_last_n", -1, dry.penalty_last_n));
  std::vector<std::string> breakers = {"\n", ":", "\"", "*"};
  MORACLE_CHECK(read_texts(body["dry_sequence_breakers"], kMaxStops, breakers));
  if (dry.multiplier == 0) return {};
  MORACLE_TRY(dry.breaker_ids, model.breakers->find(model.tokenizer, breakers));
  return {};
}

Status read_bias(const JsonField& bias, int64_t vocab_size, std::map<int32_t, float>& biases) {
  if (bias.is_null()) return {};
  if (!bias.is_object() || bias.value().size() > kMaxIds)
    return bias.bad(str("an object of at most ", kMaxIds, " token ids"));
  for (const auto& [key, value] : bias.value().items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= vocab_size)
      return bias.bad(str("token ids from 0 to ", vocab_size - 1, " as keys"));
    MORACLE_CHECK(read_number(bias, key.c_str(), -100, 100, biases[id]));
  }
  return {};
}

Status read_edits(const JsonField& body, const ServedModel& model, LogitEdits& edits) {
  const int64_t vocab_size = model.vocab_size;
  MORACLE_CHECK(read_number(body, "presence_penalty", -2, 2, edits.presence_penalty));
  MORACLE_CHECK(read_number(body, "frequency_penalty", -2, 2, edits.frequency_penalty));
  MORACLE_CHECK(read_number(body, "repetition_penalty", 1e-3, 1e3, edits.repetition_penalty));
  MORACLE_CHECK(read_count(body, "no_repeat_ngram_size", edits.no_repeat_ngram_size));
  MORACLE_CHECK(read_count(body, "min_tokens", edits.min_tokens));
  if (!body["min_tokens"].is_null()) edits.min_length = 0;
  MORACLE_CHECK(read_ids(body["suppress_tokens"], vocab_size, edits.suppress_tokens));
  MORACLE_CHECK(read_ids(body["begin_suppress_tokens"], vocab_size, edits.begin_suppress_tokens));
  MORACLE_CHECK(read_bad_words(body["bad_words"], model.tokenizer, edits));
  MORACLE_CHECK(read_dry(body, model, edits.dry));
  return read_bias(body["logit_bias"], vocab_size, edits.bias);
}

bool is_off(const nlohmann::json& value) {
  return value.empty() || value == false || value == 0 || value == "" || value == "none";
}

}  // namespace

Status read_stop_strings(const JsonField& field, std::vector<std::string>& stops) {
  return read_texts(field, kMaxStops, stops);
}

Result<std::optional<int64_t>> read_max_tokens(const JsonField& field, int64_t min) {
  if (field.is_null()) return std::optional<int64_t>();
  MORACLE_TRY(const int64_t count, field.integer(min, int64_t{1} << 30));
  return std::optional(count);
}

Result<std::optional<int64_t>> read_reasoning_budget(const JsonField& field,
                                                     const ServedModel& model) {
  if (field.is_null()) return std::optional<int64_t>();
  MORACLE_TRY(const int64_t budget, field.integer(0, int64_t{1} << 30));
  if (!model.reasoning)
    return field.unsupported("no value: the server finds no reasoning in this model's template");
  return std::optional(budget);
}

Status refuse_fields(const JsonField& body, std::span<const char* const> keys) {
  for (const char* key : keys) {
    const JsonField field = body[key];
    if (!is_off(field.value()))
      return field.unsupported("no value: this server does not support it");
  }
  return {};
}

Result<std::string> read_format(const FormatField& field, const JsonField& body,
                                const ServedModel& model) {
  const JsonField type = field.format["type"];
  if (field.format.is_null() || type.value() == "text") return std::string();
  const bool has_schema = type.value() == "json_schema";
  if (!has_schema && type.value() != "json_object")
    return type.unsupported("text, json_object or json_schema");
  if (!model.grammars) return field.format.unsupported("the type text: " + model.no_grammars);
  if (body["ignore_eos"].value() == true)
    return body["ignore_eos"].bad("false with " + field.format.place());
  if (field.has_tools) return field.format.unsupported("a request without tools");
  if (!has_schema) return std::string(R"({"type":"object"})");
  const JsonField schema = field.holder["schema"];
  if (!schema.is_object()) return schema.bad("an object");
  MORACLE_TRY(const bool strict, field.holder["strict"].flag_or(true));
  return lower_schema(field.ordered["schema"], strict,
                      SchemaLimits::of_vocabulary(model.vocab_size), schema.place());
}

Result<Job> read_job_fields(const JsonField& body, const ServedModel& model,
                            GenerationRequest& request) {
  Job job;
  job.sampling = model.generation.sampling;
  job.sampling.excluded_ids = model.excluded_ids;
  MORACLE_CHECK(read_sampling(body, job.sampling));
  job.edits = model.generation.edits;
  MORACLE_CHECK(read_edits(body, model, job.edits));
  job.stop_strings = model.generation.stop_strings;
  MORACLE_TRY(const bool ignore_eos, body["ignore_eos"].flag_or(false));
  MORACLE_CHECK(read_ids(body["stop_token_ids"], model.vocab_size, job.stop_ids));
  if (!ignore_eos) {
    const std::vector<int32_t>& eos = model.generation.eos_ids;
    job.stop_ids.insert(job.stop_ids.end(), eos.begin(), eos.end());
  }
  if (const JsonField salt = body["cache_salt"]; !salt.is_null()) {
    MORACLE_TRY(job.cache_salt, salt.text());
    if (job.cache_salt.empty() || job.cache_salt.size() > kMaxSaltBytes)
      return salt.bad(str("a text of 1 to ", kMaxSaltBytes, " bytes"));
  }
  MORACLE_TRY(request.stream, body["stream"].flag_or(false));
  request.model = model.name;
  if (!body["model"].is_null()) {
    MORACLE_TRY(request.model, body["model"].text());
  }
  if (request.model != model.name) {
    const std::optional<int32_t> adapter = model.adapters->find(request.model);
    if (!adapter) return body["model"].bad("the model's name, or that of an adapter");
    job.adapter = *adapter;
  }
  return job;
}

Status add_jobs(const char* place, const ServedModel& model, const Job& fields,
                std::vector<int32_t> prompt, std::optional<int64_t> max_tokens,
                GenerationRequest& request) {
  const auto size = static_cast<int64_t>(prompt.size());
  const auto wrong = [&](std::string need, std::string fact) {
    return Error{ErrorKind::kInvalidArgument, "", place, std::move(need), std::move(fact)};
  };
  if (prompt.empty()) return wrong("at least one token", "it is empty");
  for (const int32_t id : prompt) {
    if (id >= 0 && id < model.vocab_size &&
        !std::binary_search(model.excluded_ids.begin(), model.excluded_ids.end(), id))
      continue;
    return wrong(str("ids of tokens, from 0 to ", model.vocab_size - 1), str("it has ", id));
  }
  const int64_t left = model.max_context - size;
  // Agents ask for more tokens than small contexts have.
  const bool is_agent =
      request.dialect == Dialect::kResponses || request.dialect == Dialect::kMessages;
  if (is_agent && left >= 1 && max_tokens.value_or(left) >= left) {
    max_tokens = left;
    request.fills_context = true;
  }
  if (left < 1 || (max_tokens && *max_tokens > left)) {
    return wrong(str("together with the new tokens at most the model's context of ",
                     model.max_context, " tokens"),
                 str("the prompt has ", size,
                     max_tokens ? str(", the new tokens are ", *max_tokens) : std::string()));
  }
  if (request.jobs.size() + request.choices > 1024)
    return wrong("at most 1024 choices in total", str("it has more"));
  for (int64_t choice = 0; choice < request.choices; ++choice) {
    Job job = fields;
    job.prompt = prompt;
    job.max_tokens =
        max_tokens.value_or(std::min(model.generation.max_tokens.value_or(left), left));
    job.sampling.seed += static_cast<uint64_t>(choice);
    request.jobs.push_back(std::move(job));
  }
  return {};
}

Status add_chat_jobs(const char* place, const ServedModel& model, Job fields, ChatPrompt prompt,
                     std::optional<int64_t> max_tokens, std::optional<int64_t> budget,
                     const Progress& progress, GenerationRequest& request) {
  fields.continues_prompt = false;
  const AnswerForm& form = prompt.form;
  if (form.tools) fields.shown_ids = special_tags(form.tools->format, model.tokenizer);
  if (form.reasoning) {
    for (const int32_t id : special_ids(form.reasoning->tags, model.tokenizer))
      fields.shown_ids.push_back(id);
    // The grammar constrains the text after the reasoning. A grammar of calls has the channels.
    const bool has_calls = !prompt.grammar.empty();
    if (has_calls && form.reasoning->has_channels)
      fields.grammar_after.clear();
    else if (form.reasoning->has_channels)
      fields.grammar_after =
          form.reasoning->forced.substr(form.reasoning->forced.rfind("<|channel|>"));
    else if (form.is_reasoning)
      fields.grammar_after = form.reasoning->close;
  }
  if (form.reasoning && budget) {
    std::string_view forced = form.reasoning->forced;
    // A grammar of calls continues after the closed channel, and its answers have no final one.
    if (form.reasoning->has_channels && !prompt.grammar.empty())
      forced.remove_suffix(forced.size() - forced.rfind("<|channel|>"));
    MORACLE_TRY(std::vector<int32_t> ids, model.tokenizer.encode(std::string(forced)));
    fields.reasoning =
        ReasoningLimit{std::string(form.reasoning->open), std::string(form.reasoning->close),
                       std::move(ids), form.is_reasoning, *budget};
  }
  MORACLE_TRY(std::vector<int32_t> ids, model.tokenizer.encode(prompt.text, progress));
  MORACLE_CHECK(add_jobs(place, model, fields, std::move(ids), max_tokens, request));
  request.prompts.push_back(std::move(prompt.text));
  request.form = std::move(prompt.form);
  if (!prompt.grammar.empty()) request.grammar = std::move(prompt.grammar);
  return {};
}

}  // namespace moracle::serve
