// One sequence during generation, with drafts if the options say so.
#pragma once

#include "models/generation/logit_edits.h"
#include "models/generation/sampler.h"
#include "models/speculation/draft_control.h"
#include "models/speculation/next_tokens.h"
#include "models/speculation/ngram_drafter.h"
#include "models/speculation/row_logits.h"

namespace moracle {

class Continuation {
 public:
  /// `sequence` holds a beginning of `prompt`.
  Continuation(Model& model, KeptSequence& sequence, std::span<const int32_t> prompt,
               const GenerateOptions& options);

  /// True if the cache has no space for the text's last token.
  bool is_full(int64_t num_generated) const {
    return prompt_size_ + num_generated > cache_.capacity();
  }

  /// Finds the drafter. Errors: the model does not have it.
  Status begin();
  /// Runs the next part of a prompt, but not the last.
  Status run_prompt(std::span<const int32_t> tokens);
  /// Runs the text's tokens that are not in the cache, then the drafts, and reads the logits of
  /// each position from the text's end on if `reads`. With `draws` returns the tokens that follow:
  /// the accepted drafts and one more, which is kNothingDrawn if nothing may follow. A stop id is
  /// the last. Holds the device, so that no other thread's step comes between.
  Result<std::vector<int32_t>> next(std::span<const int32_t> tokens,
                                    std::span<const int32_t> drafts, bool draws, bool reads);
  /// Appends the tokens that the text keeps of a step. The cache drops the others.
  Status take(std::span<const int32_t> ids);
  /// Tokens to run in the next step.
  std::span<const int32_t> waiting() const {
    return std::span(text_).subspan(static_cast<size_t>(cache_.length()));
  }
  /// Drafts the next tokens, where `left` more may be generated.
  Result<std::vector<int32_t>> drafts(int64_t left);
  const SpeculationCounts& counts() const { return counts_; }
  /// The error for a draw without a result, after `ids` of this step.
  Error explain_nothing(std::span<const int32_t> ids);

 private:
  Status run(std::span<const int32_t> tokens);
  Result<std::vector<int32_t>> draft_next(int64_t most);
  Result<std::vector<int32_t>> draw(std::span<const int32_t> drafts, int64_t first, bool draws);
  Result<int32_t> draw_row(const RowLogits& rows, int64_t row);

  Model& model_;
  KvCache& cache_;
  Sampler sampler_;
  LogitEditor editor_;
  std::vector<float> edited_;
  bool were_finite_ = false;  // all logits, before edits
  const int32_t adapter_;
  const std::vector<int32_t>& stop_ids_;
  const int64_t prompt_size_;
  std::vector<int32_t>& in_cache_;  // the ids of the tokens in the cache
  std::vector<int32_t> text_;       // the prompt and all taken tokens

  Speculation speculation_;
  const bool replays_;  // dropping drafts drops other tokens, too
  NgramDrafter ngrams_;
  std::optional<KvCache> next_cache_;  // of the layer for multi-token prediction
  double draft_seconds_ = 0;           // of the drafts for the next step
  int64_t followed_ = 0;               // positions of the text up to which the layer has run
  StepCosts costs_;
  DraftControl control_;
  SpeculationCounts counts_;
  struct LastStep {
    int64_t tokens = 0, drafted = 0, before = 0;  // before: tokens in the cache
    size_t edited = 0;                            // drawn tokens that the editor has
    double seconds = 0;
  } last_;
};

}  // namespace moracle
