#pragma once

#include <random>
#include <span>

#include "moracle/model.h"

namespace moracle {

/// Draws ids. The same seed, logits and options give the same ids on every machine: the engine and
/// the uniform numbers made from it are fixed by the standard and by this file.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options), engine_(options.seed) {}
  int32_t draw(std::span<const float> logits);

 private:
  SamplingOptions options_;
  std::mt19937_64 engine_;
};

}  // namespace moracle
