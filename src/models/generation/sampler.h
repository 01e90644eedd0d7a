#pragma once

#include <optional>
#include <random>
#include <span>
#include <vector>

#include "kernels/cpu/ops/top_k.h"
#include "models/generation/token_weights.h"
#include "moracle/model.h"

namespace moracle {

/// Draws ids. The same seed, logits and options give the same ids on every machine: the standard
/// and this file fix the engine and the uniform numbers made from it.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options), engine_(options.seed) {}

  /// Number of largest logits that a draw depends on; 0: it depends on all logits.
  int64_t candidates(int64_t vocab_size) const;
  /// Draws from these candidates, in the order of Model::TopKLogits. Returns nothing if the logits
  /// give no probabilities: NaN or positive infinity among them, or nothing but negative infinity.
  std::optional<int32_t> draw(std::span<const int32_t> ids, std::span<const float> logits);
  /// Whether one of `ids` is excluded: a draw then depends on all logits.
  bool has_excluded(std::span<const int32_t> ids) const;
  bool has_exclusions() const { return !options_.excluded_ids.empty(); }
  /// Draws from all logits, indexed by id, except those of excluded ids; otherwise as above.
  std::optional<int32_t> draw(std::span<const float> logits);
  /// Draws from the logits of `ids`, ascending, as if all other logits were negative infinity.
  std::optional<int32_t> draw_among(std::span<const int32_t> ids, std::span<const float> logits,
                                    int64_t vocab_size);

 private:
  std::optional<int32_t> draw_allowed(std::span<const float> logits, int64_t num_candidates);
  double uniform();
  size_t pick(std::span<const float> logits, float largest);

  SamplingOptions options_;
  std::mt19937_64 engine_;
  // Buffers of one draw, kept to reuse their memory.
  cpu::TopK largest_;
  std::vector<int32_t> ids_;    // candidates
  std::vector<float> logits_;   // of the candidates
  std::vector<float> allowed_;  // all logits, without those of excluded ids
  std::vector<int32_t> among_;  // ids of draw_among that are not excluded
  TokenWeights weights_;
};

/// Result of `draw` for a token whose logits give no probabilities.
inline constexpr int32_t kNothingDrawn = -1;

/// Where draw() reads logits: the functions of Model, with their errors.
class LogitsSource {
 public:
  virtual ~LogitsSource() = default;
  virtual Result<std::span<const float>> logits(int64_t first, int64_t count) = 0;
  virtual Result<Model::TopKLogits> top_k_logits(int64_t first, int64_t count, int64_t k) = 0;
};

/// Draws the next token for each of the last step's tokens from `first` on, with one sampler each,
/// or gives kNothingDrawn. Every device checks the logits that a sampler's candidates() names. NaN
/// comes first, so a NaN or positive infinity anywhere in a row is among them. Errors: as
/// Model::logits.
Status draw(Model& model, int64_t first, std::span<Sampler> samplers, std::span<int32_t> ids);
/// The same with logits of `model` that `source` reads.
Status draw(Model& model, LogitsSource& source, int64_t first, std::span<Sampler> samplers,
            std::span<int32_t> ids);

}  // namespace moracle
