#pragma once

#include <optional>
#include <random>
#include <span>
#include <vector>

#include "kernels/cpu/ops/top_k.h"
#include "moracle/model.h"

namespace moracle {

/// Draws ids. The same seed, logits and options give the same ids on every machine: the engine and
/// the uniform numbers made from it are fixed by the standard and by this file.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options), engine_(options.seed) {}

  /// Logits of a vocabulary that a draw depends on: so many of the largest; 0: on all of them.
  int64_t candidates(int64_t vocab_size) const;
  /// From these, in the order of Model::TopKLogits. Nothing where they make no probabilities:
  /// NaN or positive infinity among them, or nothing but negative infinity.
  std::optional<int32_t> draw(std::span<const int32_t> ids, std::span<const float> logits);
  /// From all logits, by id; otherwise as above.
  std::optional<int32_t> draw(std::span<const float> logits);

 private:
  double uniform();
  double weight_of(float logit, float best) const;
  double keep_likely(std::span<const float> logits, float best, double reach);
  int32_t pick(std::span<const int32_t> ids, double sum, double uniform);

  SamplingOptions options_;
  std::mt19937_64 engine_;
  // Of one draw, kept for their scratch.
  cpu::TopK largest_;
  std::vector<int32_t> ids_;         // candidates
  std::vector<float> logits_;        // theirs
  std::vector<double> weights_;      // theirs
  std::vector<double> all_weights_;  // of every id, where no top_k limits them
};

/// What `draw` gives for a token whose logits make no probabilities.
inline constexpr int32_t kNothingDrawn = -1;

/// The next token of each of the last step's tokens from `first` on, one sampler for each; or
/// kNothingDrawn. On every device the logits that a sampler's candidates() names are checked:
/// since NaN comes first, a NaN or positive infinity anywhere in a row is among them. Errors: as
/// Model::logits.
Status draw(Model& model, int64_t first, std::span<Sampler> samplers, std::span<int32_t> ids);

}  // namespace moracle
