// One text during generation: how its tokens are drawn, and how they become text.
#pragma once

#include "models/generation/logit_edits.h"
#include "models/generation/sampler.h"
#include "moracle/text.h"
#include "serve/engine/job.h"
#include "text/stop_strings.h"

namespace moracle::serve {

struct Sequence {
  /// Errors: prompt ids without a token.
  static Result<Sequence> make(Job job, const Tokenizer& tokenizer);

  /// The text continues with a drawn token. answer() must follow before the next one.
  void take(int32_t id) { tokens.push_back(id); }
  /// Whether the last token ends the text, whatever the text is: a stop id, or max_tokens.
  bool ends_with_last_token() const;
  /// Adds the last token to the text. Errors: ids without a token.
  Result<Event> answer();
  /// Changes logits [vocab_size] before the draw. Errors: those of the grammar.
  Status edit(std::span<float> logits);
  bool is_stop_id(int32_t id) const;
  /// Whether a grammar or scores need these logits apart from those of other sequences.
  bool needs_own_row() const { return matcher || job.num_top; }

  Job job;
  std::vector<int32_t> tokens;  // prompt and new tokens
  Sampler sampler;
  LogitEditor editor;
  StoppingTokenStream stream;
  std::unique_ptr<GrammarMatcher> matcher;  // null: any text
  std::vector<TokenScore> prompt_scores;    // of the tokens from the second on
  int64_t reused_tokens = 0;
  double submitted = 0, last_token = 0;  // seconds on the engine's clock; 0: none yet
  std::vector<TokenScore> scores;        // of the last token, until answer()

  int64_t prompt_size() const { return static_cast<int64_t>(job.prompt.size()); }
  int64_t num_new() const { return static_cast<int64_t>(tokens.size()) - prompt_size(); }
};

}  // namespace moracle::serve
