// The indexers of DeepSeek's sparse attention in files, and the layers that share a selection.
#pragma once

#include "models/families/latent/latent_decoder.h"

namespace moracle {

/// True for each layer that sees what an earlier layer chose: indexer_types, index_topk_pattern, or
/// the keys of their frequency. Errors: other types; not one for each layer; a first layer that
/// shares.
Result<std::vector<bool>> read_shared_selections(const Config& config, int64_t num_layers);

/// Describes `prefix`{wq_b,wk,weights_proj,k_norm}.
Result<IndexerDescription> describe_indexer(const Checkpoint& checkpoint, const std::string& prefix,
                                            int64_t hidden_size, const LatentSpec& attention);

}  // namespace moracle
