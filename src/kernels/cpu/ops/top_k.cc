#include "kernels/cpu/ops/top_k.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "kernels/cpu/simd/vector_ops.h"
#include "kernels/top_k_key.h"

namespace moracle::cpu {
namespace {

// Numbers per block, whose maximum is kept: a vocabulary has some hundred blocks.
constexpr size_t kBlock = 256;

}  // namespace

// No number of the k largest is below the k'th largest block maximum. A block with a NaN counts as
// infinite here: its NaN comes first, and no number is below it.
void TopK::find(std::span<const float> numbers, std::span<int32_t> ids) {
  const VectorOps& vector = vector_ops();
  of_blocks_.clear();
  for (size_t at = 0; at < numbers.size(); at += kBlock) {
    const auto count = static_cast<int64_t>(std::min(kBlock, numbers.size() - at));
    const float largest = vector.largest(&numbers[at], count);
    of_blocks_.push_back(largest == largest ? largest : std::numeric_limits<float>::infinity());
  }
  float least = -std::numeric_limits<float>::infinity();
  if (ids.size() <= of_blocks_.size()) {
    order_ = of_blocks_;
    const auto last = order_.begin() + static_cast<int64_t>(ids.size()) - 1;
    std::nth_element(order_.begin(), last, order_.end(), std::greater<>());
    least = *last;
  }
  keys_.clear();
  for (size_t block = 0; block < of_blocks_.size(); ++block) {
    if (of_blocks_[block] < least) continue;
    const size_t end = std::min((block + 1) * kBlock, numbers.size());
    for (size_t at = block * kBlock; at < end; ++at) {
      if (!(numbers[at] < least)) keys_.push_back(top_k_key(numbers[at], static_cast<int32_t>(at)));
    }
  }
  const auto last = keys_.begin() + static_cast<int64_t>(ids.size());
  std::partial_sort(keys_.begin(), last, keys_.end(), std::greater<>());
  std::transform(keys_.begin(), last, ids.begin(), index_of_key);
}

}  // namespace moracle::cpu
