#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace moracle {

/// The weights of one draw's tokens: exp((logit - largest) / temperature), filtered. Every machine
/// computes the same bits (kernels/cpu/sampling), except keep_typical's logarithms. Keeps its
/// memory from draw to draw.
class TokenWeights {
 public:
  /// `largest` is the largest of the logits, and finite. `temperature` is above 0.
  void start(std::span<const float> logits, float largest, double temperature);
  /// Keeps the fewest of the heaviest weights that reach top_p < 1 of the sum; of equal weights the
  /// first ones.
  void keep_top_p(float top_p);
  /// Keeps weights of at least min_p times the heaviest.
  void keep_min_p(float min_p) { keep(min_p, kAbove); }
  /// Keeps the weights whose surprise, -log p, is closest to the entropy, until their probabilities
  /// reach typical_p, and equally close ones.
  void keep_typical(float typical_p);
  /// XTC: of the weights that reach `threshold` of the sum only the lightest stays, the last one of
  /// equal ones.
  void exclude_top(float threshold);
  /// The place of the weight at this share of the sum; `share` is in [0, 1).
  size_t draw(double share) const;

 private:
  static constexpr float kAbove = 2;  // no weight is above 1
  void keep(float least, float below);
  void change(size_t place, float weight);
  std::span<float> of_block(size_t block);
  struct Last {
    float weight;           // the lightest weight that the heaviest ones need to reach a sum
    uint64_t kept, equals;  // how many equals of it they need, and how many there are
  };
  Last find_last(uint64_t reach);
  Last find_last_of_few(uint64_t reach);
  void drop_equals(float weight, uint64_t kept);

  std::vector<float> weights_;
  std::vector<uint64_t> sums_;  // of blocks of weights; 0: all weights of the block are dropped
  uint64_t sum_ = 0;
  // Scratch.
  std::vector<uint32_t> bits_;
  std::vector<uint64_t> by_bits_;
  std::vector<std::pair<double, size_t>> surprises_;  // with their places
};

}  // namespace moracle
