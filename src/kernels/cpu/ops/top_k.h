#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moracle::cpu {

/// Finds the largest of many numbers; keeps its scratch from call to call.
class TopK {
 public:
  /// Places of the ids.size() largest, in the order of top_k_key; at most as many as there are
  /// numbers.
  void find(std::span<const float> numbers, std::span<int32_t> ids);

 private:
  std::vector<float> of_blocks_;
  std::vector<float> order_;
  std::vector<uint64_t> keys_;
};

}  // namespace moracle::cpu
