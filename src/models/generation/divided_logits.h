// Logits with vocabulary parallelism: each rank computes its rows, then gathers all of them.
#pragma once

#include "models/decoder/model_state.h"

namespace moracle {

/// The matrix of this rank's own logits of `count` tokens, within the memory of all ranks' shards.
Matrix own_logits(const Model::State& m, int64_t count);
/// All logits of `count` tokens after every rank has computed its own. In m.host_logits.
Result<std::span<const float>> gather_logits(Model::State& m, int64_t count);
/// The k largest likewise. In m.largest_ids and m.largest_logits.
Result<Model::TopKLogits> gather_top_k(Model::State& m, int64_t count, int64_t k);

}  // namespace moracle
