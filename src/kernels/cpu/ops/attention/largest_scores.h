// The positions of the k largest of a row of scores.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/top_k_key.h"

namespace moracle::cpu {

/// Keeps its scratch from call to call. Bins by the leading bits leave few candidates to sort.
class LargestScores {
 public:
  /// Writes k <= count positions in ascending order, NaN before all numbers. Among equal scores the
  /// lower position comes first; with a `row`, those that torch.topk chooses on a CPU from a row of
  /// this length, whose further scores are -inf.
  void find(const float* scores, int64_t count, int64_t k, int64_t row, int32_t* to) {
    bins_.fill(0);
    for (int64_t i = 0; i < count; ++i) ++bins_[order_of(scores[i]) >> kShift];
    uint32_t bin = kBins - 1;
    int64_t wanted = k;  // from this bin
    for (; bins_[bin] < wanted; --bin) wanted -= bins_[bin];
    candidates_.clear();
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t order = order_of(scores[i]);
      if (order >> kShift == bin) candidates_.push_back(order);
    }
    const auto last = candidates_.begin() + wanted - 1;
    std::nth_element(candidates_.begin(), last, candidates_.end(), std::greater<>());
    const uint32_t least = *last;
    const auto above =
        std::count_if(candidates_.begin(), last, [least](uint32_t order) { return order > least; });
    int64_t ties = wanted - above;
    if (row > 0 && std::count(candidates_.begin(), candidates_.end(), least) > ties)
      return find_as_torch(scores, count, k, row, to);
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t order = order_of(scores[i]);
      if (order > least || (order == least && ties-- > 0)) *to++ = static_cast<int32_t>(i);
    }
  }

 private:
  // torch compares values alone. Which of equal ones it keeps follows from the algorithm of the
  // standard library, so the same calls give the same choice.
  void find_as_torch(const float* scores, int64_t count, int64_t k, int64_t row, int32_t* to) {
    pairs_.clear();
    for (int64_t i = 0; i < row; ++i) {
      pairs_.emplace_back(i < count ? scores[i] : -std::numeric_limits<float>::infinity(),
                          static_cast<int32_t>(i));
    }
    const auto larger = [](const Pair& a, const Pair& b) {
      return (std::isnan(a.first) && !std::isnan(b.first)) || a.first > b.first;
    };
    if (k * 64 <= row)
      std::partial_sort(pairs_.begin(), pairs_.begin() + k, pairs_.end(), larger);
    else
      std::nth_element(pairs_.begin(), pairs_.begin() + k - 1, pairs_.end(), larger);
    for (int64_t i = 0; i < k; ++i) to[i] = pairs_[static_cast<size_t>(i)].second;
    std::sort(to, to + k);
  }

  static constexpr uint32_t kShift = 20, kBins = 1 << (32 - kShift);
  static uint32_t order_of(float score) { return static_cast<uint32_t>(top_k_key(score, 0) >> 32); }
  std::array<int64_t, kBins> bins_;
  using Pair = std::pair<float, int32_t>;
  std::vector<uint32_t> candidates_;
  std::vector<Pair> pairs_;
};

}  // namespace moracle::cpu
