// One text during generation: how its tokens are drawn, and how they become text.
#pragma once

#include "models/generation/sampler.h"
#include "moracle/text.h"
#include "serve/engine/logit_edits.h"
#include "serve/engine/stop_strings.h"

namespace moracle::serve {

struct Sequence {
  /// Errors: prompt ids without a token.
  static Result<Sequence> make(Job job, const Tokenizer& tokenizer);

  /// Adds a drawn token to the text. Errors: ids without a token.
  Result<Event> add(int32_t id);
  /// Changes logits [vocab_size] before the draw. Errors: those of the grammar.
  Status edit(std::span<float> logits);
  /// Whether the sampler alone decides: no edits, and no score needed.
  bool is_plain() const { return editor.changes_nothing() && !matcher && !job.num_top; }

  Job job;
  std::vector<int32_t> tokens;  // prompt and new tokens
  Sampler sampler;
  LogitEditor editor;
  TokenStream stream;
  StopStrings stops;
  std::unique_ptr<GrammarMatcher> matcher;  // null: any text
  std::vector<TokenScore> prompt_scores;    // of the tokens from the second on
  int64_t reused_tokens = 0;
  double submitted = 0, last_token = 0;  // seconds on the engine's clock; 0: none yet

  int64_t prompt_size() const { return static_cast<int64_t>(job.prompt.size()); }
  int64_t num_new() const { return static_cast<int64_t>(tokens.size()) - prompt_size(); }
};

}  // namespace moracle::serve
