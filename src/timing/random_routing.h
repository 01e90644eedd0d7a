// Which experts the tokens of a timed call go to.
#pragma once

#include <cstdint>
#include <vector>

#include "moracle/checkpoint.h"

namespace moracle::timing {

/// Where the tokens of one apply go: distinct experts for each, at random.
struct Routed {
  std::vector<int32_t> ids;    ///< [num_tokens, top_k]
  std::vector<float> weights;  ///< likewise
  int64_t distinct = 0;        ///< experts that have a token
};
/// Several, to be gone through in turn. Of single tokens, as many as use every expert once before
/// any comes again.
std::vector<Routed> random_routings(const LayerSpec& spec, int64_t num_tokens, uint64_t seed);

}  // namespace moracle::timing
