// Reads generation_config.json, or what a GGUF file has of it.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/generation/logit_edits.h"

namespace moracle {
namespace generation_config {
namespace {

using Json = nlohmann::json;

Result<std::vector<int32_t>> read_ids(const Config& config, const char* key) {
  MORACLE_TRY(const std::vector<int64_t> values, config.integers({key}));
  std::vector<int32_t> ids;
  for (const int64_t id : values) {
    if (id < 0 || id > INT32_MAX)
      return config.wrong({key}, "token ids from 0 to 2147483647", str("it has ", id));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

Result<std::vector<std::vector<int32_t>>> read_runs(const JsonField& field) {
  std::vector<std::vector<int32_t>> runs;
  if (field.is_null()) return runs;
  MORACLE_TRY(const std::vector<JsonField> items, field.items());
  for (const JsonField& item : items) {
    MORACLE_TRY(const std::vector<JsonField> ids, item.items());
    std::vector<int32_t>& run = runs.emplace_back();
    for (const JsonField& id : ids) {
      MORACLE_TRY(const int64_t value, id.integer(0, INT32_MAX));
      run.push_back(static_cast<int32_t>(value));
    }
  }
  return runs;
}

Result<float> read_number(const Config& config, float absent, const char* key) {
  MORACLE_TRY(const double number, config.number_or(absent, {key}));
  return static_cast<float>(number);
}

Status read_sampling(const Config& config, SamplingOptions& sampling) {
  MORACLE_TRY(const bool draws, config.boolean_or(false, {"do_sample"}));
  if (!draws) return {};
  MORACLE_TRY(sampling.temperature, read_number(config, 1, "temperature"));
  MORACLE_TRY(sampling.top_p, read_number(config, 1, "top_p"));
  MORACLE_TRY(sampling.min_p, read_number(config, 0, "min_p"));
  MORACLE_TRY(sampling.typical_p, read_number(config, 1, "typical_p"));
  MORACLE_TRY(sampling.top_k, config.integer_or(50, {"top_k"}));
  MORACLE_TRY(sampling.xtc_probability, read_number(config, 0, "xtc_probability"));
  MORACLE_TRY(sampling.xtc_threshold, read_number(config, 0.1F, "xtc_threshold"));
  return {};
}

Status read_edits(const Config& config, LogitEdits& edits) {
  MORACLE_TRY(edits.repetition_penalty, read_number(config, 1, "repetition_penalty"));
  MORACLE_TRY(edits.no_repeat_ngram_size, config.integer_or(0, {"no_repeat_ngram_size"}));
  MORACLE_TRY(edits.bad_words_ids, read_runs(config.field({"bad_words_ids"})));
  MORACLE_TRY(edits.suppress_tokens, read_ids(config, "suppress_tokens"));
  MORACLE_TRY(edits.begin_suppress_tokens, read_ids(config, "begin_suppress_tokens"));
  MORACLE_TRY(edits.min_tokens, config.integer_or(0, {"min_new_tokens"}));
  // min_new_tokens takes precedence, as in transformers.
  if (config.has({"min_new_tokens"})) return {};
  MORACLE_TRY(edits.min_length, config.integer_or(0, {"min_length"}));
  return {};
}

// `check` names an option; its value is in this file.
Status in_file(const Config& config, Status status) {
  if (status) return status;
  Error error = status.error();
  error.kind = ErrorKind::kBadFile;
  error.file = config.path();
  return error;
}

Status read_stops(const JsonField& field, std::vector<std::string>& stops) {
  if (field.is_null()) return {};
  if (field.value().is_string()) {
    stops = {*field.text()};
  } else {
    MORACLE_TRY(const std::vector<JsonField> items, field.items());
    for (const JsonField& item : items) {
      MORACLE_TRY(std::string stop, item.text());
      stops.push_back(std::move(stop));
    }
  }
  const bool is_empty = std::find(stops.begin(), stops.end(), "") != stops.end();
  return is_empty ? Status(field.bad("texts that are not empty")) : Status();
}

// Keys that change texts in transformers, and the number that has no effect there.
struct Unfollowed {
  const char* key;
  double off = 0;
};
constexpr Unfollowed kUnfollowed[] = {{"constraints"},
                                      {"diversity_penalty"},
                                      {"dola_layers"},
                                      {"encoder_no_repeat_ngram_size"},
                                      {"encoder_repetition_penalty", 1},
                                      {"epsilon_cutoff"},
                                      {"eta_cutoff"},
                                      {"exponential_decay_length_penalty"},
                                      {"force_words_ids"},
                                      {"forced_bos_token_id", -1},
                                      {"forced_eos_token_id", -1},
                                      {"guidance_scale", 1},
                                      {"max_length", 20},
                                      {"max_time"},
                                      {"num_beam_groups", 1},
                                      {"num_beams", 1},
                                      {"num_return_sequences", 1},
                                      {"penalty_alpha"},
                                      {"sequence_bias"},
                                      {"token_healing"},
                                      {"top_h"},
                                      {"watermarking_config"}};

std::vector<std::string> unfollowed(const Config& config) {
  std::vector<std::string> texts;
  for (const Unfollowed& one : kUnfollowed) {
    const Json* const value = config.find({one.key});
    if (!value || value->empty() || *value == false) continue;
    if (value->is_number() && value->get<double>() == one.off) continue;
    if (one.key == std::string_view("max_length") && config.has({"max_new_tokens"})) continue;
    texts.push_back(str("generation_config.json: ", one.key, " ", JsonField::shown(*value),
                        " is not followed"));
  }
  return texts;
}

struct GgufName {
  const char *from, *to;  // behind "general.sampling."; in generation_config.json
};
constexpr GgufName kGgufNames[] = {{"temp", "temperature"},
                                   {"top_k", "top_k"},
                                   {"top_p", "top_p"},
                                   {"min_p", "min_p"},
                                   {"xtc_probability", "xtc_probability"},
                                   {"xtc_threshold", "xtc_threshold"},
                                   {"penalty_repeat", "repetition_penalty"}};
// Others, and the number that has no effect.
constexpr Unfollowed kGgufUnfollowed[] = {{"sequence"}, {"penalty_last_n", -1}, {"mirostat"}};

Status read_gguf(const Config& metadata, GenerationConfig& generation) {
  const auto full = [](const char* name) { return str("general.sampling.", name); };
  Json values = Json::object();
  Config::Origins origins;
  for (const GgufName& name : kGgufNames) {
    const std::string key = full(name.from);
    const Json* const value = metadata.find({key.c_str()});
    if (value == nullptr) continue;
    values[name.to] = *value;
    origins[name.to] = key;
  }
  const char* const draws[] = {"temperature", "top_k", "top_p", "min_p"};
  values["do_sample"] = std::any_of(std::begin(draws), std::end(draws),
                                    [&](const char* key) { return values.contains(key); });
  const Config config = Config::from(std::move(values), metadata.path(), std::move(origins));
  MORACLE_CHECK(read_sampling(config, generation.sampling));
  MORACLE_CHECK(read_edits(config, generation.edits));
  MORACLE_CHECK(in_file(config, check(generation.edits)));
  for (const Unfollowed& one : kGgufUnfollowed) {
    const std::string key = full(one.key);
    const Json* const value = metadata.find({key.c_str()});
    if (value == nullptr || (value->is_number() && value->get<double>() == one.off)) continue;
    generation.not_followed.push_back(
        str("metadata: ", key, " ", JsonField::shown(*value), " is not followed"));
  }
  return {};
}

}  // namespace
}  // namespace generation_config

Result<GenerationConfig> GenerationConfig::open(const Checkpoint& checkpoint,
                                                const Tokenizer* tokenizer) {
  using namespace generation_config;
  const std::string path = checkpoint.folder() + "/generation_config.json";
  GenerationConfig generation;
  MORACLE_TRY(generation.eos_ids, read_ids(checkpoint.state().config, "eos_token_id"));
  if (checkpoint.state().gguf) {
    MORACLE_CHECK(read_gguf(*checkpoint.state().gguf, generation));
  } else if (!is_absent(path)) {
    MORACLE_TRY(const Config config, Config::open(path));
    MORACLE_TRY(std::vector<int32_t> eos, read_ids(config, "eos_token_id"));
    if (!eos.empty()) generation.eos_ids = std::move(eos);
    MORACLE_CHECK(read_sampling(config, generation.sampling));
    MORACLE_CHECK(read_edits(config, generation.edits));
    MORACLE_CHECK(in_file(config, check(generation.edits)));
    MORACLE_CHECK(read_stops(config.field({"stop_strings"}), generation.stop_strings));
    if (config.has({"max_new_tokens"})) {
      MORACLE_TRY(generation.max_tokens, config.integer({"max_new_tokens"}, 1));
    }
    generation.not_followed = unfollowed(config);
  }
  std::vector<int32_t>& ids = generation.eos_ids;
  for (const int32_t end : tokenizer ? tokenizer->end_ids() : std::vector<int32_t>()) {
    if (std::find(ids.begin(), ids.end(), end) == ids.end()) ids.push_back(end);
  }
  return generation;
}

}  // namespace moracle
