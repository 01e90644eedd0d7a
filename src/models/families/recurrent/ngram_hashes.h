// The hashes of n-grams of tokens (Qwen3.8-Flash-Next): multipliers of ids, and a prime number of
// rows for each head, which follow from config.json. Files may hold them, too.
#pragma once

#include "models/families/decoder_family.h"

namespace moracle {

struct NgramHashes {
  std::vector<uint64_t> multipliers, sizes, offsets;  ///< see NgramDescription
  int64_t num_rows = 0;                               ///< of the table
};
/// `index`: of the layer among those with n-grams. Errors: `prefix`layer_multipliers and the other
/// tensors have another shape, or rows that the table does not have.
Result<NgramHashes> describe_ngram_hashes(const Checkpoint& checkpoint, const std::string& prefix,
                                          const NgramSpec& spec, int64_t index);

}  // namespace moracle
