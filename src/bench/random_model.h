// A Description of random tensors, each generated when it is read.
#pragma once

#include "bench/model.h"
#include "models/description.h"

namespace moracle::bench {

struct RandomModel {
  Description description;
  int64_t bytes = 0;  ///< of all its tensors
};
/// Errors: more than `most_bytes` of weights.
Result<RandomModel> random_model(const ModelShape& shape, const RandomModelOptions& weights);

}  // namespace moracle::bench
