// What the decoders' files have in common: numbers of config.json under the keys of the Llama
// family, and matrices of the sizes that follow from them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "models/description.h"

namespace moracle {

/// What transformers takes where config.json does not say; families differ.
struct DecoderDefaults {
  double norm_epsilon = 1e-6;
  double rope_theta = 10'000;
};

/// Sizes, the norms' epsilon, the activation. Errors: values that make no sense (kBadFile).
Result<DecoderSpec> read_decoder_spec(const Config& config, const DecoderDefaults& defaults = {});
/// Heads and rotary embedding; no window. Errors: as above; use_sliding_window, layers of other
/// types than "full_attention" where `only_full` (kUnsupported), other rotary embeddings.
Result<GroupedQuerySpec> read_grouped_query(const Config& config, const DecoderSpec& decoder,
                                            bool only_full = true,
                                            const DecoderDefaults& defaults = {});
/// True for the layers of the Qwen family that have one dense MLP: in mlp_only_layers, or off
/// decoder_sparse_step.
Result<bool> is_dense_layer(const Config& config, int64_t layer);

/// The linear layers `modules`, stacked: each must have its own `rows`, all of them `k` columns.
/// Each by itself: stacked parts may not make up for each other's rows.
Result<DescribedMatrix> describe_linear(const Checkpoint& checkpoint,
                                        const std::vector<std::string>& modules,
                                        const std::vector<int64_t>& rows, int64_t k);
/// Errors: a module whose bias is not in the files, where describe_linear would do without.
Status require_bias(const Checkpoint& checkpoint, const std::vector<std::string>& modules);
/// Both.
Result<DescribedMatrix> describe_biased_linear(const Checkpoint& checkpoint,
                                               const std::vector<std::string>& modules,
                                               const std::vector<int64_t>& rows, int64_t k);

/// `prefix`{q,k,v,o}_proj; biases where the file has them. The norms and sinks are left empty.
struct GroupedQueryBiases {
  bool qkv = false, o = false;  ///< must be there
};
Result<GroupedQueryDescription> describe_grouped_query(const Checkpoint& checkpoint,
                                                       const std::string& prefix,
                                                       const DecoderSpec& decoder,
                                                       const GroupedQuerySpec& spec,
                                                       GroupedQueryBiases biases = {});

/// The router `module` of these experts.
Result<RouterDescription> describe_router(const Checkpoint& checkpoint, const std::string& module,
                                          const LayerSpec& experts);

/// An ordinary MLP, `mlp`.{gate,up,down}_proj, as one expert.
Result<DescribedWeights> describe_dense_mlp(const Checkpoint& checkpoint, const std::string& mlp,
                                            const DecoderSpec& spec, int64_t intermediate);
/// The MLP `mlp` as an expert for every token, weighed by the sigmoid of `gate` where it is named.
Result<SharedExpertDescription> describe_shared_expert(const Checkpoint& checkpoint,
                                                       const std::string& mlp,
                                                       const std::string& gate,
                                                       const DecoderSpec& spec,
                                                       int64_t intermediate);

/// A whole decoder under the names model.embed_tokens, model.norm and lm_head, its layers by
/// `describe_layer`, called from 0 up.
using DescribeLayer = std::function<Result<LayerDescription>(int64_t layer)>;
Result<Description> describe_decoder(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                     const DescribeLayer& describe_layer);

/// The table of the tokens' embeddings: floats [vocab_size, hidden_size].
Result<DescribedMatrix> describe_embedding(const Checkpoint& checkpoint, const std::string& name,
                                           const DecoderSpec& spec);

}  // namespace moracle
