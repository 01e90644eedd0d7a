// The positions of the k largest of a row of scores.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/top_k_key.h"

namespace moracle::cpu {

/// Keeps its scratch from call to call. Bins by the leading bits leave few candidates to sort.
class LargestScores {
 public:
  /// Writes k <= count positions in ascending order. Among equal scores the lower position comes
  /// first, NaN before all numbers.
  void find(const float* scores, int64_t count, int64_t k, int32_t* to) {
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
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t order = order_of(scores[i]);
      if (order > least || (order == least && ties-- > 0)) *to++ = static_cast<int32_t>(i);
    }
  }

 private:
  static constexpr uint32_t kShift = 20, kBins = 1 << (32 - kShift);
  static uint32_t order_of(float score) { return static_cast<uint32_t>(top_k_key(score, 0) >> 32); }
  std::array<int64_t, kBins> bins_;
  std::vector<uint32_t> candidates_;
};

}  // namespace moracle::cpu
