#include "models/families/decoder_family.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/experts/stack.h"
#include "checkpoint/state.h"

namespace moracle {
namespace {

Status check_size(const Checkpoint& checkpoint, const DescribedMatrix& matrix,
                  const std::vector<int64_t>& rows, int64_t k) {
  if (matrix.source_rows() == rows && matrix.shape().k == k) return {};
  const std::string first = matrix.tensors()[0];
  return checkpoint.state().tensors.wrong(
      first, str(join(rows, " + "), " rows of ", k, " columns (from config.json)"),
      str("it has ", join(matrix.source_rows(), " + "), " rows of ", matrix.shape().k));
}

}  // namespace

std::string layer_prefix(const Checkpoint& checkpoint, int64_t layer) {
  const LayerPlace place = place_of(checkpoint.state(), layer);
  return str(place.root, "layers.", place.number, ".");
}

Result<std::vector<float>> describe_norm(const Checkpoint& checkpoint, const std::string& module,
                                         int64_t size, const DecoderSpec& spec) {
  MORACLE_TRY(std::vector<float> weights, checkpoint.vector(module + ".weight", size));
  for (float& weight : weights) weight += spec.norm_offset;
  if (spec.layer_norm && !spec.norm_bias) weights.resize(static_cast<size_t>(2 * size));
  if (spec.layer_norm && spec.norm_bias) {
    MORACLE_TRY(const std::vector<float> biases, checkpoint.vector(module + ".bias", size));
    weights.insert(weights.end(), biases.begin(), biases.end());
  }
  return weights;
}

Result<DescribedMatrix> describe_linear(const Checkpoint& checkpoint,
                                        const std::vector<std::string>& modules,
                                        const std::vector<int64_t>& rows, int64_t k) {
  MORACLE_TRY(DescribedMatrix matrix, checkpoint.linear(modules));
  MORACLE_CHECK(check_size(checkpoint, matrix, rows, k));
  return matrix;
}

Status require_bias(const Checkpoint& checkpoint, const std::vector<std::string>& modules) {
  for (const std::string& module : modules) {
    if (checkpoint.has_tensor(module + ".bias")) continue;
    const Tensors& tensors = checkpoint.state().tensors;
    Error error = tensors.wrong(module + ".bias",
                                "to be in the file, as the architecture and config.json require",
                                "it is missing");
    error.file = tensors.file_of(module + ".weight");
    return error;
  }
  return {};
}

Result<DescribedMatrix> describe_biased_linear(const Checkpoint& checkpoint,
                                               const std::vector<std::string>& modules,
                                               const std::vector<int64_t>& rows, int64_t k) {
  MORACLE_CHECK(require_bias(checkpoint, modules));
  return describe_linear(checkpoint, modules, rows, k);
}

Result<GroupedQueryDescription> describe_grouped_query(const Checkpoint& checkpoint,
                                                       const std::string& prefix,
                                                       const DecoderSpec& decoder,
                                                       const GroupedQuerySpec& spec,
                                                       GroupedQueryBiases biases) {
  auto linear = [&](bool biased) { return biased ? describe_biased_linear : describe_linear; };
  std::vector<std::string> modules = {prefix + "q_proj", prefix + "k_proj", prefix + "v_proj"};
  std::vector<int64_t> rows = {spec.queries(), spec.keys(), spec.values()};
  if (spec.values_are_keys) {
    modules.pop_back();
    rows.pop_back();
  }
  if (spec.output_gate == OutputGate::kInQueries) rows[0] *= 2;
  if (spec.output_gate == OutputGate::kAfterValues || spec.output_gate == OutputGate::kPerHead) {
    modules.push_back(prefix + biases.gate_name);
    rows.push_back(spec.gates());
  }
  MORACLE_TRY(DescribedMatrix qkv,
              linear(biases.qkv)(checkpoint, modules, rows, decoder.hidden_size));
  MORACLE_TRY(DescribedMatrix o, linear(biases.o)(checkpoint, {prefix + biases.o_name},
                                                  {decoder.hidden_size}, spec.outputs()));
  return GroupedQueryDescription{spec, {}, {}, {}, std::move(qkv), std::move(o)};
}

Status describe_head_norms(const Checkpoint& checkpoint, const std::string& prefix,
                           const DecoderSpec& decoder, GroupedQueryDescription& attention) {
  const int64_t size = attention.spec.head_dim;
  MORACLE_TRY(attention.q_norm, describe_norm(checkpoint, prefix + "q_norm", size, decoder));
  MORACLE_TRY(attention.k_norm, describe_norm(checkpoint, prefix + "k_norm", size, decoder));
  return {};
}

Status describe_norms_over_heads(const Checkpoint& checkpoint, const std::string& prefix,
                                 GroupedQueryDescription& attention) {
  GroupedQuerySpec& spec = attention.spec;
  spec.qk_norm = QkNorm::kOverHeads;
  MORACLE_TRY(attention.q_norm,
              checkpoint.vector(prefix + "q_norm.weight", spec.num_heads * spec.head_dim));
  MORACLE_TRY(attention.k_norm,
              checkpoint.vector(prefix + "k_norm.weight", spec.num_kv_heads * spec.head_dim));
  return {};
}

Result<RouterDescription> describe_router(const Checkpoint& checkpoint, const std::string& module,
                                          const LayerSpec& experts, const std::string& bias) {
  MORACLE_TRY(DescribedMatrix weights, checkpoint.router(module));
  MORACLE_CHECK(check_size(checkpoint, weights, {experts.num_experts}, experts.hidden_size));
  RouterDescription router{std::move(weights), {}, {}};
  if (experts.routing.correction_bias) {
    MORACLE_TRY(router.correction_bias,
                checkpoint.vector(bias.empty() ? module + ".e_score_correction_bias" : bias,
                                  experts.num_experts));
  }
  return router;
}

Result<DescribedWeights> describe_dense_mlp(const Checkpoint& checkpoint, const std::string& mlp,
                                            const DecoderSpec& spec, int64_t intermediate,
                                            const MlpNames& names) {
  const auto module = [&](const char* name) { return str(mlp, ".", name); };
  std::vector<std::string> gate_up = {module(names.gate)};
  std::vector<int64_t> rows = {2 * intermediate};
  if (names.up != nullptr) {
    gate_up.push_back(module(names.up));
    rows = {intermediate, intermediate};
  } else if (!is_gated(spec.activation)) {
    rows = {intermediate};
  }
  MORACLE_TRY(DescribedMatrix w13, describe_linear(checkpoint, gate_up, rows, spec.hidden_size));
  MORACLE_TRY(DescribedMatrix w2,
              describe_linear(checkpoint, {module(names.down)}, {spec.hidden_size}, intermediate));
  MORACLE_CHECK(
      check_activations(checkpoint.state().tensors, gate_up[0], w13, module(names.down), w2));
  LayerSpec layer{.name = mlp, .hidden_size = spec.hidden_size, .intermediate_size = intermediate};
  layer.activation.function = spec.activation;
  layer.scheme = w13.scheme();
  layer.group_index = w13.shape().group_index || w2.shape().group_index;
  layer.bias = w13.shape().bias || w2.shape().bias;
  layer.set_matrices({w13.shape(), w2.shape()});
  return DescribedWeights{std::move(layer), std::move(w13), std::move(w2)};
}

Result<SharedExpertDescription> describe_shared_expert(const Checkpoint& checkpoint,
                                                       const std::string& mlp,
                                                       const std::string& gate,
                                                       const DecoderSpec& spec,
                                                       int64_t intermediate) {
  MORACLE_TRY(DescribedWeights weights, describe_dense_mlp(checkpoint, mlp, spec, intermediate));
  SharedExpertDescription shared{std::move(weights), {}};
  if (gate.empty()) return shared;
  // The weight of the one expert is the sigmoid of its logit, not renormalized.
  shared.mlp.spec.routing.score = Score::kSigmoid;
  MORACLE_TRY(RouterDescription router, describe_router(checkpoint, gate, shared.mlp.spec));
  shared.gate.emplace(std::move(router.weights));
  return shared;
}

Result<LayerDescription> describe_decoder_layer(const Checkpoint& checkpoint,
                                                const DecoderSpec& spec, int64_t layer,
                                                AttentionDescription attention,
                                                DescribedWeights mlp,
                                                std::optional<RouterDescription> router,
                                                std::optional<SharedExpertDescription> shared) {
  const auto norm = [&](const char* name) {
    return describe_norm(checkpoint, layer_prefix(checkpoint, layer) + name, spec.hidden_size,
                         spec);
  };
  // MiMo's layers for multi-token prediction have a name of their own for it.
  const bool own_name =
      checkpoint.describes_next_tokens() &&
      checkpoint.has_tensor(layer_prefix(checkpoint, layer) + "pre_mlp_layernorm.weight");
  MORACLE_TRY(auto input_norm, norm("input_layernorm"));
  MORACLE_TRY(auto post_norm, norm(own_name ? "pre_mlp_layernorm" : "post_attention_layernorm"));
  return LayerDescription{std::move(input_norm), std::move(post_norm), std::move(attention),
                          std::move(router),     std::move(mlp),       std::move(shared)};
}

Result<LayerDescription> describe_qwen_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                             int64_t layer, AttentionDescription attention,
                                             bool with_shared) {
  const Config& config = checkpoint.state().config;
  const std::string mlp = layer_prefix(checkpoint, layer) + "mlp";
  MORACLE_TRY(const bool dense, is_dense_layer(config, layer));
  if (dense) {
    MORACLE_TRY(const int64_t intermediate, config.integer({"intermediate_size"}, 1, 1 << 24));
    MORACLE_TRY(DescribedWeights weights, describe_dense_mlp(checkpoint, mlp, spec, intermediate));
    return describe_decoder_layer(checkpoint, spec, layer, std::move(attention),
                                  std::move(weights));
  }
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  MORACLE_TRY(RouterDescription router, describe_router(checkpoint, mlp + ".gate", experts.spec));
  std::optional<SharedExpertDescription> shared;
  if (with_shared) {
    MORACLE_TRY(const int64_t intermediate,
                config.integer({"shared_expert_intermediate_size"}, 1, 1 << 24));
    MORACLE_TRY(shared, describe_shared_expert(checkpoint, mlp + ".shared_expert",
                                               mlp + ".shared_expert_gate", spec, intermediate));
  }
  return describe_decoder_layer(checkpoint, spec, layer, std::move(attention), std::move(experts),
                                std::move(router), std::move(shared));
}

namespace {

// The layer has names of its own for its norms. Its embedding and its output are those of the model
// unless the file repeats them.
Result<Description> describe_next_token_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                              const DescribeLayer& describe_layer, bool tied,
                                              const char* embedding_name) {
  const Checkpoint::State& state = checkpoint.state();
  const int64_t number = state.num_layers, hidden = spec.hidden_size;
  const bool is_qwen = place_of(state, number).root == "mtp.";
  const std::string prefix = is_qwen ? "mtp." : layer_prefix(checkpoint, number);
  const auto name = [&](const char* usual, const char* of_qwen) {
    return prefix + (is_qwen ? of_qwen : usual);
  };
  const auto own_or = [&](const std::string& own, const std::string& of_model) {
    return !is_qwen && checkpoint.has_tensor(prefix + own + ".weight") ? prefix + own : of_model;
  };
  MORACLE_TRY(auto embedding_norm,
              describe_norm(checkpoint, name("enorm", "pre_fc_norm_embedding"), hidden, spec));
  MORACLE_TRY(auto hidden_norm,
              describe_norm(checkpoint, name("hnorm", "pre_fc_norm_hidden"), hidden, spec));
  MORACLE_TRY(DescribedMatrix matrix,
              describe_linear(checkpoint, {name("eh_proj", "fc")}, {hidden}, 2 * hidden));
  MORACLE_TRY(LayerDescription layer, describe_layer(number));
  const bool is_mimo = checkpoint.has_tensor(prefix + "final_layernorm.weight");
  MORACLE_TRY(
      auto norm,
      describe_norm(checkpoint, name(is_mimo ? "final_layernorm" : "shared_head.norm", "norm"),
                    hidden, spec));
  const std::string table = state.root + embedding_name;
  const bool own_output = !tied || checkpoint.has_tensor(state.output + ".weight");
  MORACLE_TRY(DescribedMatrix embedding,
              describe_embedding(checkpoint, own_or("embed_tokens", table) + ".weight", spec));
  MORACLE_TRY(
      DescribedMatrix output,
      describe_linear(checkpoint, {own_or("shared_head.head", own_output ? state.output : table)},
                      {spec.vocab_size}, hidden));
  std::vector<LayerDescription> layers;
  layers.push_back(std::move(layer));
  Description description{
      spec,       std::move(embedding), std::move(layers), std::move(norm), std::move(output),
      !own_output};
  description.join.emplace(
      JoinDescription{std::move(embedding_norm), std::move(hidden_norm), std::move(matrix)});
  return description;
}

}  // namespace

Result<Description> describe_decoder(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                     const DescribeLayer& describe_layer,
                                     const char* final_norm_name, const char* embedding_name) {
  const Checkpoint::State& state = checkpoint.state();
  MORACLE_TRY(bool tied, state.config.boolean_or(false, {"tie_embedding", "tie_word_embeddings"}));
  if (state.wrapper) {
    MORACLE_TRY(tied, state.wrapper->boolean_or(tied, {"tie_word_embeddings"}));
  }
  if (checkpoint.describes_next_tokens())
    return describe_next_token_layer(checkpoint, spec, describe_layer, tied, embedding_name);
  const std::string table = state.root + embedding_name, head = state.output;
  MORACLE_TRY(DescribedMatrix embedding, describe_embedding(checkpoint, table + ".weight", spec));
  std::vector<LayerDescription> layers;
  for (int64_t layer = 0; layer < checkpoint.num_layers(); ++layer) {
    MORACLE_TRY(LayerDescription described, describe_layer(layer));
    layers.push_back(std::move(described));
  }
  std::vector<float> final_norm;
  if (final_norm_name != nullptr) {
    MORACLE_TRY(final_norm,
                describe_norm(checkpoint, state.root + final_norm_name, spec.hidden_size, spec));
  }
  // Tied files hold no lm_head. If a file has one anyway, use it: in transformers it would not
  // differ from the embedding.
  const bool own_output = !tied || checkpoint.has_tensor(head + ".weight");
  MORACLE_TRY(DescribedMatrix output, describe_linear(checkpoint, {own_output ? head : table},
                                                      {spec.vocab_size}, spec.hidden_size));
  return Description{
      spec,       std::move(embedding), std::move(layers), std::move(final_norm), std::move(output),
      !own_output};
}

Status ignore_tensors(const Checkpoint& checkpoint, const std::string& what,
                      const std::vector<std::string>& prefixes, Description& description) {
  IgnoredTensors ignored{what};
  std::set<std::string> used;
  for (const std::string& name : checkpoint.unclaimed()) {
    const auto prefix =
        std::find_if(prefixes.begin(), prefixes.end(),
                     [&](const std::string& start) { return name.starts_with(start); });
    if (prefix == prefixes.end()) continue;
    used.insert(*prefix);
    MORACLE_TRY(const TensorView tensor, checkpoint.tensor(name));
    ignored.num_tensors += 1;
    ignored.bytes += static_cast<int64_t>(tensor.num_bytes());
  }
  ignored.prefixes.assign(used.begin(), used.end());
  if (ignored.num_tensors > 0) description.ignored.push_back(std::move(ignored));
  return {};
}

Result<DescribedMatrix> describe_embedding(const Checkpoint& checkpoint, const std::string& name,
                                           const DecoderSpec& spec) {
  MORACLE_TRY(const TensorView embedding, checkpoint.tensor(name));
  const std::vector<int64_t> shape = {spec.vocab_size, spec.hidden_size};
  const bool is_float = embedding.dtype == DType::kBF16 || embedding.dtype == DType::kF16 ||
                        embedding.dtype == DType::kF32;
  if ((!is_float && !is_gguf_block(embedding.dtype)) || embedding.shape != shape) {
    return checkpoint.state().tensors.wrong(name, str("bf16, f16 or f32 [", join(shape), "]"),
                                            "it is " + to_string(embedding));
  }
  const std::string module = name.substr(0, name.rfind('.'));
  MORACLE_TRY(DescribedMatrix table, checkpoint.table(module));
  if (table.tensors() == std::vector<std::string>{name}) return table;
  return checkpoint.state().tensors.wrong(name, "to be the only tensor of its module",
                                          "the module has " + join(table.tensors()));
}

}  // namespace moracle
