#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/ops/top_k.h"
#include "serve/engine/job.h"

namespace moracle::serve {

/// Computes log probabilities from logits. Reuses its scratch.
class Scorer {
 public:
  /// Scores `id` from logits [vocab_size], with the `num_top` most likely ids.
  TokenScore score(std::span<const float> logits, int32_t id, int64_t num_top);

 private:
  cpu::TopK largest_;
};

}  // namespace moracle::serve
