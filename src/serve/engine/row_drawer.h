// Draws the token that follows one row of a sequence: edits, grammar, sampler, scores.
#pragma once

#include <optional>

#include "models/speculation/row_logits.h"
#include "serve/engine/sequence.h"
#include "serve/engine/token_score.h"

namespace moracle::serve {

/// A draw without a result although the logits are finite: the request forbids every token.
inline constexpr int32_t kAllForbidden = -2;
static_assert(kAllForbidden != kNothingDrawn);

/// The token of one row, or kNothingDrawn, or kAllForbidden.
struct DrawnToken {
  int32_t id = kNothingDrawn;
  std::vector<TokenScore> scores;  // one, if the job asks for them
  Status status;                   // errors: those of the grammar
};

/// Keeps the buffers of one thread: up to a row of logits.
class RowDrawer {
 public:
  /// Number of largest allowed logits that decide the next draw; 0: it needs all logits.
  static int64_t candidates(const Sequence& sequence, int64_t vocab_size);

  DrawnToken draw(Sequence& sequence, std::span<const float> logits);
  /// Draws from the largest logits of a row, sorted; the mask may have been applied. Returns
  /// nothing, and changes nothing, if the draw needs more of them. The result is that of draw()
  /// with all logits.
  std::optional<DrawnToken> draw(Sequence& sequence, const RowLogits::Largest& largest,
                                 int64_t vocab_size);

 private:
  std::optional<int32_t> draw_token(Sequence& sequence, std::span<const float> logits);
  std::optional<int32_t> draw_largest(Sequence& sequence, const RowLogits::Largest& largest,
                                      int64_t vocab_size);

  std::vector<float> edited_;  // all logits of a row, edited
  std::vector<int32_t> ids_;   // allowed tokens
  std::vector<float> logits_;  // of these
  Scorer scorer_;
};

}  // namespace moracle::serve
