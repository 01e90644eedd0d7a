#include "serve/engine/row_drawer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace moracle::serve {
namespace {

// Why nothing was drawn. `logits`: of the model, before edits.
int32_t why_nothing(std::span<const float> logits) {
  const auto is_bad = [](float logit) {
    return std::isnan(logit) || logit == std::numeric_limits<float>::infinity();
  };
  const bool is_finite =
      std::none_of(logits.begin(), logits.end(), is_bad) &&
      std::any_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); });
  return is_finite ? kAllForbidden : kNothingDrawn;
}

// Draws the only token that is left. The sampler advances as in every draw.
std::optional<int32_t> draw_only(Sequence& sequence, int32_t id, int64_t vocab_size) {
  constexpr float kAnyLogit = 0;
  return sequence.sampler.draw_among({&id, 1}, {&kAnyLogit, 1}, vocab_size);
}

}  // namespace

int64_t RowDrawer::candidates(const Sequence& sequence, int64_t vocab_size) {
  if (sequence.job.num_top) return 0;
  if (sequence.forced_id()) return 1;
  const int64_t needs = sequence.sampler.candidates(vocab_size);
  return needs > Model::kMaxTopK || !sequence.editor.changes_nothing() ? 0 : needs;
}

std::optional<int32_t> RowDrawer::draw_token(Sequence& sequence, std::span<const float> logits) {
  const auto vocab_size = static_cast<int64_t>(logits.size());
  if (const auto forced = sequence.forced_id()) return draw_only(sequence, *forced, vocab_size);
  if (!sequence.editor.changes_nothing()) {
    edited_.assign(logits.begin(), logits.end());
    sequence.editor.apply(edited_);
    logits = edited_;
  }
  if (!sequence.matcher || sequence.mask.allows_all()) return sequence.sampler.draw(logits);
  // Listing few tokens takes less time than passing over all logits twice.
  constexpr int64_t kFew = 16;  // of the vocabulary: one in 16
  if (sequence.mask.num_allowed() <= vocab_size / kFew) {
    sequence.mask.list(ids_);
    logits_.clear();
    for (const int32_t id : ids_) logits_.push_back(logits[static_cast<size_t>(id)]);
    return sequence.sampler.draw_among(ids_, logits_, vocab_size);
  }
  edited_.resize(logits.size());
  sequence.mask.copy(logits, edited_);
  return sequence.sampler.draw(edited_);
}

DrawnToken RowDrawer::draw(Sequence& sequence, std::span<const float> logits) {
  DrawnToken drawn;
  drawn.status = sequence.prepare_mask();
  if (!drawn.status) return drawn;
  drawn.id = draw_token(sequence, logits).value_or(kNothingDrawn);
  if (drawn.id == kNothingDrawn) drawn.id = why_nothing(logits);
  if (sequence.job.num_top && drawn.id >= 0)
    drawn.scores.push_back(scorer_.score(logits, drawn.id, *sequence.job.num_top));
  return drawn;
}

// An undrawn token needs all logits, too: they tell why.
std::optional<DrawnToken> RowDrawer::draw(Sequence& sequence, const RowLogits::Largest& largest,
                                          int64_t vocab_size) {
  if (candidates(sequence, vocab_size) == 0) return {};
  DrawnToken drawn;
  std::optional<int32_t> id;
  if (const auto forced = sequence.forced_id()) {
    id = draw_only(sequence, *forced, vocab_size);
  } else {
    if (!std::isfinite(largest.logits[0])) return {};  // NaN and infinity come first
    drawn.status = sequence.prepare_mask();
    if (!drawn.status) return drawn;
    id = draw_largest(sequence, largest, vocab_size);
  }
  if (!id) return {};
  drawn.id = *id;
  return drawn;
}

std::optional<int32_t> RowDrawer::draw_largest(Sequence& sequence,
                                               const RowLogits::Largest& largest,
                                               int64_t vocab_size) {
  const auto wanted = static_cast<size_t>(sequence.sampler.candidates(vocab_size));
  std::span<const int32_t> ids = largest.ids;
  std::span<const float> logits = largest.logits;
  if (sequence.matcher && !sequence.mask.allows_all()) {
    const TokenMask& mask = sequence.mask;
    if (mask.num_allowed() == 1) {
      mask.list(ids_);
      return draw_only(sequence, ids_[0], vocab_size);
    }
    ids_.clear();
    logits_.clear();
    for (size_t i = 0; i < ids.size() && ids_.size() < wanted; ++i) {
      if (!mask.allows(ids[i])) continue;
      ids_.push_back(ids[i]);
      logits_.push_back(logits[i]);
    }
    if (ids_.size() < wanted && std::cmp_less(ids_.size(), mask.num_allowed())) return {};
    ids = ids_;
    logits = logits_;
  } else if (ids.size() < wanted) {
    return {};
  } else {
    ids = ids.first(wanted);
    logits = logits.first(wanted);
  }
  if (sequence.sampler.has_excluded(ids)) return {};
  return sequence.sampler.draw(ids, logits);
}

}  // namespace moracle::serve
