// LFM2-MoE: gated short convolutions, and GQA with norms on q and k in some layers. Dense first
// layers, sigmoid routing with a correction bias. transformers adds 1e-6 to the sum that divides
// the weights of the chosen experts; without that, the weights here are larger by 1e-6 / sum.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace lfm2_moe {
namespace {

// The defaults of transformers' Lfm2MoeConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 65536, "hidden_size": 2048, "intermediate_size": 7168,
  "moe_intermediate_size": 1792, "num_hidden_layers": 32, "tie_word_embeddings": true,
  "max_position_embeddings": 128000, "norm_eps": 1e-05, "num_attention_heads": 32,
  "num_key_value_heads": 8, "conv_bias": false, "conv_L_cache": 3, "num_dense_layers": 2,
  "num_experts_per_tok": 4, "num_experts": 32, "use_expert_bias": true,
  "routed_scaling_factor": 1.0, "norm_topk_prob": true, "rope_theta": 1000000.0
})";

constexpr ExpertNames kNames[] = {
    {"model.layers.{L}.feed_forward.experts", "w1", "w3", "w2"},
    {.experts = "model.layers.{L}.feed_forward.experts", .fused = true}};
constexpr std::string_view kBias = "model.layers.{L}.feed_forward.expert_bias";

struct Spec {
  DecoderSpec decoder;
  GroupedQuerySpec heads;
  ShortConvolutionSpec convolution;
  std::vector<bool> is_convolution;  // by layer
  int64_t dense_layers = 0, dense_intermediate = 0;
  bool correction_bias = true;
};

Result<std::vector<bool>> read_layer_types(const Config& config, int64_t num_layers) {
  MORACLE_TRY(const std::vector<std::string> types, config.texts({"layer_types"}));
  std::vector<bool> is_convolution;
  for (const std::string& type : types) {
    if (type != "conv" && type != "full_attention")
      return config.unsupported({"layer_types"}, "conv and full_attention", "it has " + type);
    is_convolution.push_back(type == "conv");
  }
  if (static_cast<int64_t>(types.size()) == num_layers) return is_convolution;
  return config.wrong({"layer_types"}, str("one for each of ", num_layers, " layers"),
                      str("it has ", types.size()));
}

Result<Spec> read(const Config& config, int64_t num_layers) {
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config, "norm_eps"));
  MORACLE_TRY(spec.heads, read_grouped_query(config, spec.decoder, false));
  spec.convolution.hidden_size = spec.decoder.hidden_size;
  MORACLE_TRY(spec.convolution.kernel, config.integer({"conv_L_cache"}, 2, 16));
  // transformers computes it in dense layers, whatever the key says.
  if (spec.decoder.activation != Activation::kSilu)
    return config.unsupported({"hidden_act"}, "silu", "it is another one");
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"conv_bias"}));
  if (biased) return config.unsupported({"conv_bias"}, "false", "it is true");
  MORACLE_TRY(spec.is_convolution, read_layer_types(config, num_layers));
  MORACLE_TRY(spec.dense_layers, config.integer({"num_dense_layers"}, 0));
  MORACLE_TRY(spec.dense_intermediate, config.integer({"intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(spec.correction_bias, config.boolean_or(false, {"use_expert_bias"}));
  return spec;
}

Result<AttentionDescription> describe_attention(const Checkpoint& checkpoint,
                                                const std::string& prefix, const Spec& spec) {
  MORACLE_TRY(
      GroupedQueryDescription attention,
      describe_grouped_query(checkpoint, prefix, spec.decoder, spec.heads, {.o_name = "out_proj"}));
  const int64_t size = spec.heads.head_dim;
  MORACLE_TRY(attention.q_norm,
              describe_norm(checkpoint, prefix + "q_layernorm", size, spec.decoder));
  MORACLE_TRY(attention.k_norm,
              describe_norm(checkpoint, prefix + "k_layernorm", size, spec.decoder));
  return AttentionDescription(std::move(attention));
}

Result<AttentionDescription> describe_convolution(const Checkpoint& checkpoint,
                                                  const std::string& prefix, const Spec& spec) {
  const int64_t hidden = spec.decoder.hidden_size;
  MORACLE_TRY(DescribedMatrix bcx,
              describe_linear(checkpoint, {prefix + "in_proj"}, {3 * hidden}, hidden));
  MORACLE_TRY(DescribedMatrix o,
              describe_linear(checkpoint, {prefix + "out_proj"}, {hidden}, hidden));
  MORACLE_TRY(auto weights,
              checkpoint.floats(prefix + "conv.weight", {hidden, 1, spec.convolution.kernel}));
  return AttentionDescription(ShortConvolutionDescription{spec.convolution, std::move(weights),
                                                          std::move(bcx), std::move(o)});
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& spec,
                                        int64_t layer) {
  const DecoderSpec& decoder = spec.decoder;
  const int64_t hidden = decoder.hidden_size;
  const std::string prefix = layer_prefix(checkpoint, layer), mlp = prefix + "feed_forward";
  MORACLE_TRY(auto input_norm,
              describe_norm(checkpoint, prefix + "operator_norm", hidden, decoder));
  MORACLE_TRY(auto post_norm, describe_norm(checkpoint, prefix + "ffn_norm", hidden, decoder));
  MORACLE_TRY(AttentionDescription attention,
              spec.is_convolution[static_cast<size_t>(layer)]
                  ? describe_convolution(checkpoint, prefix + "conv.", spec)
                  : describe_attention(checkpoint, prefix + "self_attn.", spec));
  if (layer < spec.dense_layers) {
    MORACLE_TRY(
        DescribedWeights weights,
        describe_dense_mlp(checkpoint, mlp, decoder, spec.dense_intermediate, {"w1", "w3", "w2"}));
    return LayerDescription{
        std::move(input_norm), std::move(post_norm), std::move(attention), {}, std::move(weights)};
  }
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  experts.spec.routing.correction_bias = spec.correction_bias;
  MORACLE_TRY(RouterDescription router,
              describe_router(checkpoint, mlp + ".gate", experts.spec,
                              of_layer(checkpoint.state(), kBias, layer)));
  return LayerDescription{std::move(input_norm), std::move(post_norm), std::move(attention),
                          std::move(router), std::move(experts)};
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  return describe_decoder(
      checkpoint, spec.decoder,
      [&](int64_t layer) { return describe_layer(checkpoint, spec, layer); }, "embedding_norm");
}

constexpr GgufKey kGgufKeys[] = {
    {"attention.layer_norm_rms_epsilon", "norm_eps"},
    {"feed_forward_length", "intermediate_size"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"leading_dense_block_count", "num_dense_layers", false},
    {"shortconv.l_cache", "conv_L_cache"},
    {"attention.head_count_kv", "num_key_value_heads"},
};
constexpr GgufTensor kGgufTensors[] = {
    {"token_embd_norm", "model.embedding_norm"},
    {"blk.{L}.attn_norm", "model.layers.{L}.operator_norm"},
    {"blk.{L}.ffn_norm", "model.layers.{L}.ffn_norm"},
    {"blk.{L}.attn_q_norm", "model.layers.{L}.self_attn.q_layernorm"},
    {"blk.{L}.attn_k_norm", "model.layers.{L}.self_attn.k_layernorm"},
    {"blk.{L}.attn_output", "model.layers.{L}.self_attn.out_proj"},
    {"blk.{L}.shortconv.conv", "model.layers.{L}.conv.conv"},
    {"blk.{L}.shortconv.in_proj", "model.layers.{L}.conv.in_proj"},
    {"blk.{L}.shortconv.out_proj", "model.layers.{L}.conv.out_proj"},
    {"blk.{L}.ffn_gate", "model.layers.{L}.feed_forward.w1"},
    {"blk.{L}.ffn_up", "model.layers.{L}.feed_forward.w3"},
    {"blk.{L}.ffn_down", "model.layers.{L}.feed_forward.w2"},
    {"blk.{L}.ffn_gate_inp", "model.layers.{L}.feed_forward.gate"},
    {"blk.{L}.exp_probs_b.bias", "model.layers.{L}.feed_forward.expert_bias"},
    {"blk.{L}.ffn_gate_exps", "model.layers.{L}.feed_forward.experts.{E}.w1"},
    {"blk.{L}.ffn_up_exps", "model.layers.{L}.feed_forward.experts.{E}.w3"},
    {"blk.{L}.ffn_gate_up_exps", "model.layers.{L}.feed_forward.experts.{E}.w1",
     "model.layers.{L}.feed_forward.experts.{E}.w3"},
    {"blk.{L}.ffn_down_exps", "model.layers.{L}.feed_forward.experts.{E}.w2"},
};
// Layers of convolutions have no heads of keys.
Status set_layer_types_by_heads(GgufModel& model) {
  nlohmann::json &config = model.config, types = nlohmann::json::array();
  const nlohmann::json heads = config["num_key_value_heads"];
  const auto layers = config["num_hidden_layers"].get<size_t>();
  const std::string key = gguf_key(model, "attention.head_count_kv");
  int64_t common = 0;
  for (size_t layer = 0; layer < layers; ++layer) {
    const nlohmann::json one = !heads.is_array()      ? heads
                               : layer < heads.size() ? heads[layer]
                                                      : nlohmann::json();
    const int64_t count = one.is_number_integer() ? one.get<int64_t>() : -1;
    if (count < 0 || (count > 0 && common > 0 && count != common)) {
      return model.metadata.wrong({key.c_str()},
                                  str("0 or one number of heads, for each of ", layers, " layers"),
                                  str("layer ", layer, " has another value"));
    }
    if (count > 0) common = count;
    types.push_back(count > 0 ? "full_attention" : "conv");
  }
  config["layer_types"] = std::move(types);
  if (common > 0) config["num_key_value_heads"] = common;
  return {};
}
Status finish_gguf(GgufModel& model) {
  MORACLE_CHECK(require_gating(model, GgufGating::kSigmoid));
  reshape(model, ".conv.conv.weight", [](const TensorView& stored) {
    std::vector<int64_t> shape = stored.shape;
    if (shape.size() == 2) shape.insert(shape.begin() + 1, 1);
    return shape;
  });
  return set_layer_types_by_heads(model);
}
Status write_gguf(GgufDraft& draft) {
  MORACLE_TRY(const std::vector<std::string> types, draft.config.texts({"layer_types"}));
  MORACLE_TRY(const int64_t heads, draft.config.integer({"num_key_value_heads"}, 1, 1 << 16));
  nlohmann::json by_layer = nlohmann::json::array();
  for (const std::string& type : types) by_layer.push_back(type == "full_attention" ? heads : 0);
  if (!types.empty()) put_gguf(draft, "attention.head_count_kv", std::move(by_layer));
  return put_sigmoid_gating(draft);
}
constexpr GgufConvention kGguf[] = {
    {.architecture = "lfm2moe",
     .keys = kGgufKeys,
     .tensors = kGgufTensors,
     .constants = R"({"num_dense_layers": 0, "norm_topk_prob": true})",
     .finish = finish_gguf,
     .write = write_gguf}};

}  // namespace
}  // namespace lfm2_moe

constinit const Family kLfm2MoeFamily = {
    .architecture = "Lfm2MoeForCausalLM",
    .models = "LFM2-MoE",
    .notes = "weights of experts differ from transformers' by 1e-6 / sum",
    .describe = lfm2_moe::describe,
    .experts = {.defaults = lfm2_moe::kDefaults,
                .names = lfm2_moe::kNames,
                .score = Score::kSigmoid,
                .correction_bias = lfm2_moe::kBias,
                .gguf = lfm2_moe::kGguf}};

}  // namespace moracle
