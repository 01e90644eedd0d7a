// Logits of the rows of a step that verify drafts.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "base/try.h"
#include "models/generation/sampler.h"

namespace moracle {

/// The logits of `count` rows from `first` on, read once: the largest of each row where they
/// decide, else all. Rows are then drawn one after another, because a row's draw depends on the
/// tokens before it.
class RowLogits {
 public:
  /// `candidates`: see Sampler::candidates. `source` has the functions of LogitsSource and must
  /// stay. Its next logits replace those of all().
  template <class Source>
  static Result<RowLogits> read(Source& source, int64_t vocab_size, int64_t first, int64_t count,
                                int64_t candidates) {
    RowLogits rows;
    rows.first_ = first;
    rows.vocab_size_ = static_cast<size_t>(vocab_size);
    if (candidates < 1 || candidates > Model::kMaxTopK) {
      MORACLE_TRY(rows.all_, source.logits(first, count));
      return rows;
    }
    MORACLE_TRY(const Model::TopKLogits largest, source.top_k_logits(first, count, candidates));
    return of(largest, vocab_size, first, candidates);
  }
  /// The largest logits of the rows from `first` on.
  static RowLogits of(const Model::TopKLogits& largest, int64_t vocab_size, int64_t first,
                      int64_t candidates) {
    RowLogits rows;
    rows.first_ = first;
    rows.vocab_size_ = static_cast<size_t>(vocab_size);
    rows.candidates_ = static_cast<size_t>(candidates);
    rows.ids_.assign(largest.ids.begin(), largest.ids.end());
    rows.largest_.assign(largest.logits.begin(), largest.logits.end());
    return rows;
  }

  bool has_all() const { return candidates_ == 0; }
  /// All logits of a row; needs has_all().
  std::span<const float> all(int64_t row) const {
    return all_.subspan(static_cast<size_t>(row) * vocab_size_, vocab_size_);
  }
  struct Largest {
    std::span<const int32_t> ids;
    std::span<const float> logits;
  };
  /// The largest logits of a row, in the order of Model::TopKLogits; needs !has_all().
  Largest largest(int64_t row) const {
    const size_t at = static_cast<size_t>(row) * candidates_;
    return {std::span(ids_).subspan(at, candidates_), std::span(largest_).subspan(at, candidates_)};
  }
  /// Draws what follows a row, or gives kNothingDrawn. Reads all its logits if the sampler
  /// excludes one of the largest.
  template <class Source>
  Result<int32_t> draw(Source& source, int64_t row, Sampler& sampler) const {
    if (has_all()) return sampler.draw(all(row)).value_or(kNothingDrawn);
    const Largest found = largest(row);
    const auto wanted = static_cast<size_t>(sampler.candidates(static_cast<int64_t>(vocab_size_)));
    const std::span<const int32_t> ids = found.ids.first(wanted);
    if (sampler.has_excluded(ids)) {
      MORACLE_TRY(const std::span<const float> one, source.logits(first_ + row, 1));
      return sampler.draw(one).value_or(kNothingDrawn);
    }
    return sampler.draw(ids, found.logits.first(wanted)).value_or(kNothingDrawn);
  }

 private:
  int64_t first_ = 0;
  size_t vocab_size_ = 0, candidates_ = 0;  // candidates: 0: all logits
  std::span<const float> all_;
  std::vector<int32_t> ids_;    // [rows, candidates]
  std::vector<float> largest_;  // likewise
};

}  // namespace moracle
