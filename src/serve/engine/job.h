// What the engine generates, and the events with which it answers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moracle/model.h"
#include "serve/grammar/grammar.h"

namespace moracle::serve {

/// The log probability of one token, from the model's logits before temperature and edits.
struct TokenScore {
  int32_t id = 0;
  float log_probability = 0;
  std::vector<std::pair<int32_t, float>> top;  ///< most likely ids, in descending order
};

enum class Finish {
  kNone,       ///< it goes on
  kStop,       ///< a stop id or a stop string
  kLength,     ///< max_tokens
  kTimeout,    ///< the time limit
  kQueueFull,  ///< refused: try again later
  kTooLong,    ///< refused: the cache has too few pages for it
  kStopping,   ///< the server ends
  kUnloaded,   ///< its adapter was unloaded while it waited
  kFailed,     ///< see Event::message
};

/// Progress of one job. The last event has a `finish`.
struct Event {
  std::string text;                   ///< whole UTF-8 characters
  std::vector<TokenScore> scores;     ///< of the new tokens, if requested
  std::vector<TokenScore> of_prompt;  ///< of the prompt's tokens except the first; once
  Finish finish = Finish::kNone;
  std::string message;
  int64_t prompt_tokens = 0, new_tokens = 0, reused_tokens = 0;  ///< so far
};

/// One text to generate.
struct Job {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 16;  ///< 0: only score the prompt
  SamplingOptions sampling;
  LogitEdits edits;
  std::vector<int32_t> stop_ids;
  std::vector<int32_t> shown_ids;  ///< special tokens that the text contains all the same
  /// The text ends before the first of them. Those of special tokens count, though no text has
  /// them.
  std::vector<std::string> stop_strings;
  std::shared_ptr<const Grammar> grammar;  ///< of the text; null: any text
  int32_t adapter = -1;
  std::string cache_salt;             ///< jobs with another one share no pages of prompts
  std::optional<int64_t> num_top;     ///< set: score each new token, with this many most likely ids
  bool scores_prompt = false;         ///< also score the prompt; needs num_top
  bool continues_prompt = true;       ///< false: the text is an answer of its own, as in a chat
  double time_limit = 0;              ///< seconds; 0: none
  std::function<void(Event&&)> sink;  ///< called on the engine's thread; must not wait
};

}  // namespace moracle::serve
