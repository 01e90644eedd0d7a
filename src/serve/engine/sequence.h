// State of one running sequence: sampling, detokenization, scores.
#pragma once

#include "models/generation/logit_edits.h"
#include "models/generation/sampler.h"
#include "models/speculation/draft_control.h"
#include "models/speculation/ngram_drafter.h"
#include "moracle/text.h"
#include "serve/engine/job.h"
#include "text/stop_strings.h"

namespace moracle::serve {

struct Sequence {
  /// Errors: prompt ids without a token.
  static Result<Sequence> make(Job job, const Tokenizer& tokenizer, int64_t vocab_size);

  /// Appends a sampled token. Call answer() before the next one.
  void take(int32_t id) { tokens.push_back(id); }
  /// True if the last token ends the sequence regardless of stop strings: a stop id, or max_tokens.
  bool ends_with_last_token() const;
  /// Detokenizes the last token. Errors: ids without a token.
  Result<Event> answer();
  bool needs_mask() const { return matcher && !has_mask && !forced_id(); }
  /// Computes the mask of the next token, unless it is there. May run on any thread. Errors: those
  /// of the grammar.
  Status prepare_mask();
  /// Errors (kUnsupported): the grammar takes too long.
  Status check_grammar_time() const;
  bool is_stop_id(int32_t id) const;
  /// The fields of the request that forbid tokens, for the message of Finish::kForbidden.
  std::string forbidding_fields() const;
  /// Counts the reasoning, and looks for the text before the grammar. Errors: ids without a token.
  Status follow_reasoning(int32_t id);
  /// The only token that may come next, while the budget closes the reasoning.
  std::optional<int32_t> forced_id() const {
    return budget && budget->forces() ? std::optional(budget->forced_id()) : std::nullopt;
  }

  Job job;
  std::vector<int32_t> tokens;  // prompt and new tokens
  Sampler sampler;
  LogitEditor editor;
  StoppingTokenStream stream;
  std::unique_ptr<GrammarMatcher> matcher;  // null: unconstrained
  TokenMask mask;                           // of the next token, if there is a matcher
  bool has_mask = false;                    // `mask` is computed
  std::optional<ReasoningBudget> budget;    // empty: unlimited
  std::string before_grammar;               // end of the text before the grammar begins
  bool is_constrained = true;               // the grammar has begun
  double grammar_seconds = 0;               // processor time of all calls of the matcher
  std::vector<TokenScore> prompt_scores;    // scores of the prompt from its second token on
  int64_t reused_tokens = 0;
  double submitted = 0, last_token = 0;  // seconds on the engine's clock; 0: none yet
  std::vector<TokenScore> scores;        // scores of the last token, until answer()
  NgramDrafter ngrams;
  std::optional<KvCache> next_cache;  // of the layer for multi-token prediction
  int64_t followed = 0;               // positions up to which that layer has run
  DraftControl drafting;
  std::vector<int32_t> drafts;  // for the next step
  int64_t accepted = 0;         // of the last step's drafts
  bool decoded = false;         // in the last step, instead of computing its prompt

  const Tokenizer* tokenizer = nullptr;

  int64_t prompt_size() const { return static_cast<int64_t>(job.prompt.size()); }
  int64_t num_new() const { return static_cast<int64_t>(tokens.size()) - prompt_size(); }
};

}  // namespace moracle::serve
