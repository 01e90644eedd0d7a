// Random expert choices for the tokens of timed calls.
#pragma once

#include <cstdint>
#include <vector>

#include "moracle/layer.h"

namespace moracle::timing {

/// Routing of one apply: random distinct experts for each token.
struct Routed {
  std::vector<int32_t> ids;    ///< [num_tokens, top_k]
  std::vector<float> weights;  ///< likewise
  int64_t distinct = 0;        ///< number of experts with a token
};
/// Makes several routings to use round-robin. `zipf` 0: all experts are equally likely, and single
/// tokens use every expert once before any repeats. Above 0: the r-th most popular expert (from 1)
/// is drawn with weight r^-zipf; the popular experts are the same ones in all routings.
std::vector<Routed> random_routings(const LayerSpec& spec, int64_t num_tokens, uint64_t seed,
                                    double zipf = 0);

}  // namespace moracle::timing
