#pragma once

#include <random>
#include <span>
#include <vector>

#include "moracle/model.h"

namespace moracle {

/// Draws ids. The same seed, logits and options give the same ids on every machine: the engine and
/// the uniform numbers made from it are fixed by the standard and by this file.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options), engine_(options.seed) {}
  int32_t draw(std::span<const float> logits);

 private:
  int32_t find_best(std::span<const float> logits);
  void keep_top_k(std::span<const float> logits);
  double keep_likely(std::span<const float> logits, float best, double reach);
  void sort(std::span<const float> logits, int64_t count);
  double weight_of(float logit, float best) const;

  SamplingOptions options_;
  std::mt19937_64 engine_;
  // Of one draw, kept for their room.
  std::vector<float> largest_;       // of each block of the vocabulary
  std::vector<int32_t> ids_;         // candidates
  std::vector<double> weights_;      // of the candidates
  std::vector<double> all_weights_;  // of every id, where no top_k limits them
};

}  // namespace moracle
