// Options that `moracle run` and its conversations share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "options/model_options.h"
#include "options/speculation_options.h"
#include "terminal.h"

namespace moracle::cli {

struct RunOptions {
  ModelArguments model;
  std::vector<std::string> prompts;  // prompt texts
  std::string prompt_file;
  bool chat = false;
  std::optional<std::string> system;
  std::string tools;                  // file
  std::optional<int64_t> max_tokens;  // unset: 128, or the rest of the context in a conversation
  std::string routing_statistics;     // file
  std::string prompt_cache;           // file; empty: none
  bool ignore_eos = false, dry_run = false;
  std::string machine = "here";
  // Unset: the value of generation_config.json.
  std::optional<float> temperature, top_p, min_p, typical_p, repetition_penalty;
  std::optional<float> xtc_probability, xtc_threshold, dry_multiplier, dry_base;
  std::optional<int64_t> top_k, no_repeat_ngram_size, min_tokens;
  std::optional<int64_t> dry_allowed_length, dry_penalty_last_n;
  std::vector<std::string> dry_breakers = {"\n", ":", "\"", "*"};
  std::optional<std::vector<int32_t>> suppress_tokens, begin_suppress_tokens;
  std::optional<std::vector<std::string>> bad_words, stop;
  std::vector<int32_t> stop_token_ids;
  uint64_t seed = 0;
  SpeculationArguments speculation;

  void add_sampling_to(CLI::App& verb);
  bool has_prompt() const { return !prompts.empty() || !prompt_file.empty(); }
  /// Builds the generation options. Excludes ids that the model has and the tokenizer lacks.
  /// Errors: values out of range; a bad word without tokens.
  Result<GenerateOptions> generating(const GenerationConfig& config,
                                     const Tokenizer& tokenizer) const;
  std::vector<std::string> stop_strings(const GenerationConfig& config) const {
    return stop.value_or(config.stop_strings);
  }
};

inline std::string rate(int64_t tokens, double seconds) {
  return seconds > 0 ? rounded(static_cast<double>(tokens) / seconds) : "–";
}

/// A conversation over standard input: each line is a turn.
int run_conversation(const RunOptions& options);

}  // namespace moracle::cli
