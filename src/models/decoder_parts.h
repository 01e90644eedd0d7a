// What the decoders' files have in common: numbers of config.json under the keys of the Llama
// family, and matrices of the sizes that follow from them.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "models/description.h"

namespace moracle {

/// Sizes, the norms' epsilon, the rotary base. Errors: values that make no sense (kBadFile); other
/// rotary embeddings than the default, and sliding windows (kUnsupported).
Result<DecoderSpec> read_decoder_spec(const Config& config);

/// The linear layers `modules`, stacked: each must have its own `rows`, all of them `k` columns.
/// Each by itself: stacked parts may not make up for each other's rows.
Result<DescribedMatrix> describe_linear(const Checkpoint& checkpoint,
                                        const std::vector<std::string>& modules,
                                        const std::vector<int64_t>& rows, int64_t k);

/// The router `module` of these experts.
Result<DescribedMatrix> describe_router(const Checkpoint& checkpoint, const std::string& module,
                                        const LayerSpec& experts);

/// An ordinary MLP, `mlp`.{gate,up,down}_proj, as one expert.
Result<DescribedWeights> describe_dense_mlp(const Checkpoint& checkpoint, const std::string& mlp,
                                            const DecoderSpec& spec, int64_t intermediate);

/// The table of the tokens' embeddings: floats [vocab_size, hidden_size].
Result<TensorView> describe_embedding(const Checkpoint& checkpoint, const std::string& name,
                                      const DecoderSpec& spec);

}  // namespace moracle
