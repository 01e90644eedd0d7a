// What `moracle run` and its conversations share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model_options.h"
#include "terminal.h"

namespace moracle::cli {

struct RunOptions {
  ModelArguments model;
  std::vector<std::string> prompts;  // each a text
  std::string prompt_file;
  bool chat = false;
  std::optional<std::string> system;
  std::string tools;                  // file
  std::optional<int64_t> max_tokens;  // unset: 128, or in a conversation the rest of the context
  std::string routing_statistics;     // file
  bool ignore_eos = false, dry_run = false;
  std::string machine = "here";
  // Unset: the values of generation_config.json.
  std::optional<float> temperature, top_p, min_p;
  std::optional<int64_t> top_k;
  uint64_t seed = 0;

  bool has_prompt() const { return !prompts.empty() || !prompt_file.empty(); }
  SamplingOptions sampling(const GenerationConfig& config) const {
    SamplingOptions sampling = config.sampling;
    if (temperature) sampling.temperature = *temperature;
    if (top_k) sampling.top_k = *top_k;
    if (top_p) sampling.top_p = *top_p;
    if (min_p) sampling.min_p = *min_p;
    sampling.seed = seed;
    return sampling;
  }
};

inline std::string rate(int64_t tokens, double seconds) {
  return seconds > 0 ? rounded(static_cast<double>(tokens) / seconds) : "–";
}

/// A conversation over standard input: each line is a turn.
int run_conversation(const RunOptions& options);

}  // namespace moracle::cli
