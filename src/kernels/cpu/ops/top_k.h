#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moracle::cpu {

/// Finds the largest of many numbers. Keeps its scratch from call to call.
class TopK {
 public:
  /// The ids of the ids.size() largest numbers, in the order of top_k_key. ids.size() is at most
  /// numbers.size().
  void find(std::span<const float> numbers, std::span<int32_t> ids);

 private:
  std::vector<float> of_blocks_;
  std::vector<float> order_;
  std::vector<uint64_t> keys_;
};

}  // namespace moracle::cpu
