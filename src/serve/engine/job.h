// Jobs of the engine, and the events that it returns.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moracle/model.h"
#include "serve/grammar/grammar.h"
#include "serve/reasoning/reasoning_budget.h"

namespace moracle::serve {

/// Log probability of a token, from the logits before temperature and edits.
struct TokenScore {
  int32_t id = 0;
  float log_probability = 0;
  std::vector<std::pair<int32_t, float>> top;  ///< top-k alternatives, most likely first
};

enum class Finish {
  kNone,       ///< not finished
  kStop,       ///< a stop token or a stop string
  kLength,     ///< max_tokens
  kTimeout,    ///< the time limit
  kQueueFull,  ///< rejected: the queue is full, retry later
  kTooLong,    ///< rejected: needs more pages than the cache has
  kStopping,   ///< the server is stopping
  kUnloaded,   ///< the adapter was unloaded before the start
  kForbidden,  ///< the request's fields together forbid every token, see Event::message
  kFailed,     ///< an error, see Event::message
};

/// Progress of one job. The last event has a `finish`.
struct Event {
  std::string text;                   ///< complete UTF-8 characters
  std::vector<TokenScore> scores;     ///< scores of the new tokens, if requested
  std::vector<TokenScore> of_prompt;  ///< scores of prompt tokens from the second on; sent once
  Finish finish = Finish::kNone;
  std::string message;
  std::string stop_string;  ///< the stop string that ended the text; empty: none
  int64_t prompt_tokens = 0, new_tokens = 0, reused_tokens = 0;  ///< totals so far
};

/// One sequence to generate.
struct Job {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 16;  ///< 0: only score the prompt
  SamplingOptions sampling;
  LogitEdits edits;
  std::vector<int32_t> stop_ids;
  std::vector<int32_t> shown_ids;  ///< special tokens that stay in the text
  /// Stop strings: the text ends before the first match. They also match special tokens, which the
  /// text omits.
  std::vector<std::string> stop_strings;
  std::shared_ptr<const Grammar> grammar;   ///< constrains the text; null: unconstrained
  std::string grammar_place = "grammar";    ///< the request's field that has it, for messages
  std::string grammar_after;                ///< the grammar begins after this text; empty: at once
  std::optional<ReasoningLimit> reasoning;  ///< empty: unlimited
  int32_t adapter = -1;
  std::string cache_salt;          ///< prefix cache scope: jobs share pages only with equal salts
  std::optional<int64_t> num_top;  ///< top alternatives per scored token; empty: no scores
  bool scores_prompt = false;      ///< also score the prompt; needs num_top
  bool continues_prompt = true;    ///< false: the text starts a new chat message
  double time_limit = 0;           ///< seconds; 0: none
  std::function<void(Event&&)> sink;  ///< called on the engine's thread; must not block
};

}  // namespace moracle::serve
