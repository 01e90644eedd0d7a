// The tokens of one sequence in a step, for layers with a recurrent state. The state before a step
// is read, and the state after it is written elsewhere, so that a failed step changes nothing.
#pragma once

#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {

struct RecurrentTokens {
  int64_t first, last;
  const float* before;  ///< null: zeros
  float* after;
};
/// `state`: byte offset of the layer's state in a sequence's.
inline RecurrentTokens recurrent_tokens(const Batch& batch, int64_t sequence, int64_t state) {
  const auto at = [state](std::byte* base) {
    return base == nullptr ? nullptr : reinterpret_cast<float*>(base + state);
  };
  return {batch.first_token[sequence], batch.first_token[sequence + 1],
          at(batch.states[2 * sequence]), at(batch.states[2 * sequence + 1])};
}

}  // namespace moracle
