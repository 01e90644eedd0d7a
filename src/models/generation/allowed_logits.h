// Top-k logits of the tokens that a mask allows.
#pragma once

#include <cstdint>
#include <span>

#include "moracle/model.h"

namespace moracle {

/// Words of one row's mask: a bit for each token of the vocabulary.
inline int64_t words_of_mask(int64_t vocab_size) {
  return (vocab_size + 31) / 32;
}

/// As Model::top_k_logits, where tokens without a bit count as negative infinity. `allowed` [count,
/// words_of_mask] is in host memory: bit id % 32 of word id / 32. Errors: also those of a divided
/// output.
Result<Model::TopKLogits> top_k_allowed_logits(Model& model, int64_t first, int64_t count,
                                               int64_t k, std::span<const uint32_t> allowed);

}  // namespace moracle
