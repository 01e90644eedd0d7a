#include "text/jinja/library/sorting.h"

#include <algorithm>

#include "base/try.h"
#include "text/jinja/values/compare.h"

namespace moracle::jinja {

Result<std::vector<size_t>> sorted_indices(Budget& budget, const Values& keys, bool reverse) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<size_t> merged(keys.size());
  // A hand-written merge sort: std::stable_sort cannot stop at a failing comparison.
  for (size_t width = 1; width < order.size(); width *= 2) {
    for (size_t begin = 0; begin < order.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, order.size());
      const size_t end = std::min(middle + width, order.size());
      size_t left = begin, right = middle, out = begin;
      while (left < middle && right < end) {
        const Value& a = keys[order[left]];
        const Value& b = keys[order[right]];
        MORACLE_TRY(const bool swap, reverse ? ordered(budget, Order::kLess, a, b)
                                             : ordered(budget, Order::kLess, b, a));
        merged[out++] = swap ? order[right++] : order[left++];
      }
      while (left < middle) merged[out++] = order[left++];
      while (right < end) merged[out++] = order[right++];
    }
    order.swap(merged);
  }
  return order;
}

}  // namespace moracle::jinja
