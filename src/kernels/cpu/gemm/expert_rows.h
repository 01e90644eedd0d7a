// Maps the rows of a run to experts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kernels/grouped_linear.h"

namespace moracle::cpu {

/// A run's rows by expert, counted from the run's first row.
class ExpertRows {
 public:
  ExpertRows(const GroupedRows& rows, int64_t num_experts)
      : one_{0, static_cast<int32_t>(rows.num_rows)},
        offsets_(rows.expert_offsets),
        begin_(rows.first_row),
        num_experts_(num_experts) {
    const int32_t* const offsets = this->offsets();
    end_ =
        std::max<int64_t>(std::min<int64_t>(offsets[num_experts], begin_ + rows.num_rows), begin_);
  }

  int64_t count() const { return end_ - begin_; }
  int64_t num_experts() const { return num_experts_; }
  int64_t first(int64_t e) const {
    return std::clamp<int64_t>(offsets()[e], begin_, end_) - begin_;
  }
  int64_t past(int64_t e) const { return first(e + 1); }
  int64_t rows(int64_t e) const { return past(e) - first(e); }
  /// Includes the expert's rows in other runs.
  int64_t all_rows(int64_t e) const { return offsets()[e + 1] - offsets()[e]; }
  /// The first expert from `e` on that has rows.
  int64_t with_rows(int64_t e) const {
    while (e < num_experts_ && rows(e) == 0) ++e;
    return e;
  }

 private:
  const int32_t* offsets() const { return offsets_ != nullptr ? offsets_ : one_; }

  int32_t one_[2];
  const int32_t* offsets_;
  int64_t begin_, end_ = 0, num_experts_;
};

/// Some rows of an expert.
struct RowItem {
  int64_t expert = 0, first = 0, past = 0;
};

/// Every expert's rows, split into items of even size, at most `most_rows` rows each. Items are
/// numbered. The experts from row `tail` on have smaller items, so that threads that take items one
/// by one end together.
class RowItems {
 public:
  RowItems(const ExpertRows& rows, int64_t most_rows, int64_t tail = INT64_MAX)
      : rows_(rows), most_rows_(most_rows), tail_(tail) {}

  int64_t of(int64_t expert) const {
    const int64_t rows = rows_.rows(expert), most = most_rows_of(expert, rows);
    return (rows + most - 1) / most;
  }
  /// Item `index`, which must not decrease between calls; nullopt: there are fewer items.
  std::optional<RowItem> at(int64_t index) {
    for (; expert_ < rows_.num_experts(); before_ += of(expert_++)) {
      const int64_t items = of(expert_), i = index - before_;
      if (i >= items) continue;
      const int64_t first = rows_.first(expert_), count = rows_.rows(expert_);
      return RowItem{expert_, first + count * i / items, first + count * (i + 1) / items};
    }
    return {};
  }

 private:
  // Halves, and quarters in the second half of the tail, of kLeast rows or more: an item reads all
  // weights of its expert.
  int64_t most_rows_of(int64_t expert, int64_t rows) const {
    constexpr int64_t kLeast = 64;
    const int64_t first = rows_.first(expert), most = std::min(rows, most_rows_);
    if (first < tail_ || most < 2 * kLeast) return most_rows_;
    const bool ends = first - tail_ >= (rows_.count() - tail_) / 2;
    return std::max(kLeast, (most + (ends ? 3 : 1)) / (ends ? 4 : 2));
  }

  const ExpertRows& rows_;
  int64_t most_rows_, tail_, expert_ = 0, before_ = 0;
};

}  // namespace moracle::cpu
