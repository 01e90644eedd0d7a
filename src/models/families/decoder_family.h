// Shared code of the decoder families: sizes from config.json under the keys of the Llama family,
// and matrices of the matching sizes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "models/attention/rotary.h"
#include "models/description.h"

namespace moracle {

/// Reads sizes, the epsilon of the norms and the activation, unless the family has a fixed one.
/// Errors: invalid values (kBadFile).
Result<DecoderSpec> read_decoder_spec(const Config& config, const char* epsilon = "rms_norm_eps",
                                      std::optional<Activation> fixed = {});
/// Reads heads; no RoPE and no window. Errors: invalid values (kBadFile).
Result<GroupedQuerySpec> read_heads(const Config& config, const DecoderSpec& decoder);
/// Reads heads and RoPE; no window. Errors: as above; use_sliding_window, layers of other types
/// than "full_attention" if `only_full` (kUnsupported), other rotary embeddings.
Result<GroupedQuerySpec> read_grouped_query(const Config& config, const DecoderSpec& decoder,
                                            bool only_full = true, const RotaryKinds& kinds = {});
/// RoPE of the layers of `kind`, one of the objects in rope_parameters. Errors: it is missing; as
/// read_rotary.
Result<Rotary> read_rotary_of_kind(const Config& config, const char* kind, int64_t dim,
                                   const RotaryKinds& kinds = {});
/// The window under Qwen's keys: sliding_window where use_sliding_window, else 0.
Result<int64_t> read_sliding_window(const Config& config);
/// The window of each layer, 0 for none: `window` for "sliding_attention" in layer_types, or,
/// without that key, where `is_windowed`. Errors: other types; not one type for each layer.
Result<std::vector<int64_t>> read_windows(const Config& config, int64_t window, int64_t num_layers,
                                          const std::function<bool(int64_t layer)>& is_windowed);
/// Reads heads, window and RoPE of each layer, for families whose layers with a window have a RoPE
/// of their own. Windows as in read_windows, RoPE as in read_rotary_of_kind.
Result<std::vector<GroupedQuerySpec>> read_windowed_layers(
    const Config& config, const DecoderSpec& decoder, int64_t num_layers,
    const std::function<bool(int64_t layer)>& is_windowed, const RotaryKinds& kinds = {});
/// For keys that transformers does not read, because it always computes `value`. Errors
/// (kUnsupported): the key is there with the other value.
Status require_flag(const Config& config, const char* key, bool value);
/// True for layers of the Qwen family with one dense MLP: in mlp_only_layers, or off
/// decoder_sparse_step.
Result<bool> is_dense_layer(const Config& config, int64_t layer);

/// "model.layers.3.", or where the files of this checkpoint have the layers.
std::string layer_prefix(const Checkpoint& checkpoint, int64_t layer);

/// The weights of the norm `module`, as RMSNorm multiplies with them: with spec.norm_offset. With
/// spec.layer_norm, its biases follow them: zeros without spec.norm_bias.
Result<std::vector<float>> describe_norm(const Checkpoint& checkpoint, const std::string& module,
                                         int64_t size, const DecoderSpec& spec);

/// Stacks the linear layers `modules`. Each must have its own `rows`, and all must have `k`
/// columns. The check is per module: stacked parts must not make up for each other's rows.
Result<DescribedMatrix> describe_linear(const Checkpoint& checkpoint,
                                        const std::vector<std::string>& modules,
                                        const std::vector<int64_t>& rows, int64_t k);
/// Errors: a module's bias is not in the files. describe_linear accepts that.
Status require_bias(const Checkpoint& checkpoint, const std::vector<std::string>& modules);
/// describe_linear with require_bias.
Result<DescribedMatrix> describe_biased_linear(const Checkpoint& checkpoint,
                                               const std::vector<std::string>& modules,
                                               const std::vector<int64_t>& rows, int64_t k);

/// Describes `prefix`{q,k,v,o}_proj, and gate_proj as spec.output_gate says, with biases if the
/// file has them. Leaves the norms and sinks empty.
struct GroupedQueryBiases {
  bool qkv = false, o = false;  ///< must exist
  const char *o_name = "o_proj", *gate_name = "gate_proj";
};
Result<GroupedQueryDescription> describe_grouped_query(const Checkpoint& checkpoint,
                                                       const std::string& prefix,
                                                       const DecoderSpec& decoder,
                                                       const GroupedQuerySpec& spec,
                                                       GroupedQueryBiases biases = {});

/// Describes the norms `prefix`{q,k}_norm, each of one head.
Status describe_head_norms(const Checkpoint& checkpoint, const std::string& prefix,
                           const DecoderSpec& decoder, GroupedQueryDescription& attention);
/// Describes the norms `prefix`{q,k}_norm, each over all heads.
Status describe_norms_over_heads(const Checkpoint& checkpoint, const std::string& prefix,
                                 GroupedQueryDescription& attention);

/// Describes the router `module` of `experts`. A correction bias is the tensor `bias`, or
/// `module`.e_score_correction_bias.
Result<RouterDescription> describe_router(const Checkpoint& checkpoint, const std::string& module,
                                          const LayerSpec& experts, const std::string& bias = "");

/// The function without a gate that config.json names: "relu2" is Activation::kRelu2NoMul. Errors:
/// other functions than silu, gelu, gelu_tanh and relu2.
Result<Activation> read_ungated(const Config& config, const char* key);
/// Describes an ordinary MLP, `mlp`.{gate,up,down}_proj or with other names, as one expert. Without
/// `up`, the rows of `gate` are those of gate, then those of up, or up alone if the activation has
/// no gate.
struct MlpNames {
  const char *gate = "gate_proj", *up = "up_proj", *down = "down_proj";
};
Result<DescribedWeights> describe_dense_mlp(const Checkpoint& checkpoint, const std::string& mlp,
                                            const DecoderSpec& spec, int64_t intermediate,
                                            const MlpNames& names = {});
/// Describes the MLP `mlp` as an expert for every token, weighted by the sigmoid of `gate` if
/// named.
Result<SharedExpertDescription> describe_shared_expert(const Checkpoint& checkpoint,
                                                       const std::string& mlp,
                                                       const std::string& gate,
                                                       const DecoderSpec& spec,
                                                       int64_t intermediate);

/// Describes a layer of its parts and the norms input_layernorm and post_attention_layernorm.
/// Without a router, `mlp` is one dense MLP.
Result<LayerDescription> describe_decoder_layer(const Checkpoint& checkpoint,
                                                const DecoderSpec& spec, int64_t layer,
                                                AttentionDescription attention,
                                                DescribedWeights mlp,
                                                std::optional<RouterDescription> router = {},
                                                std::optional<SharedExpertDescription> shared = {});
/// describe_decoder_layer under Qwen's names: one MLP where is_dense_layer says so, else experts
/// and, if the family has one, a gated shared expert.
Result<LayerDescription> describe_qwen_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                             int64_t layer, AttentionDescription attention,
                                             bool with_shared);

/// Describes a whole decoder with the names model.embed_tokens, model.norm (or others; null: there
/// is no such norm) and lm_head.
/// Calls `describe_layer` for each layer, from 0 up.
using DescribeLayer = std::function<Result<LayerDescription>(int64_t layer)>;
Result<Description> describe_decoder(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                     const DescribeLayer& describe_layer,
                                     const char* final_norm_name = "norm",
                                     const char* embedding_name = "embed_tokens");

/// Claims the tensors whose names begin with one of `prefixes`, so that they count as known. Adds
/// them to the description as `what`, if there are any.
Status ignore_tensors(const Checkpoint& checkpoint, const std::string& what,
                      const std::vector<std::string>& prefixes, Description& description);

/// Describes the token embedding table: floats [vocab_size, hidden_size].
Result<DescribedMatrix> describe_embedding(const Checkpoint& checkpoint, const std::string& name,
                                           const DecoderSpec& spec);

}  // namespace moracle
