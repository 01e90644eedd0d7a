// Granite-4.0-H: Granite-MoE with a shared MLP, whose layers are Mamba-2 or attention, most often
// without RoPE. Without experts the shared MLP is the whole feed-forward.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/granite_moe.h"
#include "models/families/recurrent/mamba_layers.h"
#include "models/gguf/gguf_recurrent.h"

namespace moracle {
namespace granite_moe_hybrid {
namespace {

// The defaults of transformers' GraniteMoeHybridConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false,
  "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
  "attention_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2,
  "shared_intermediate_size": 1024, "rope_theta": 10000.0, "mamba_n_heads": 128,
  "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2,
  "mamba_conv_bias": true, "mamba_proj_bias": false, "mamba_d_head": "auto",
  "time_step_limit": [0.0, {"__float__": "Infinity"}]
})";

struct Spec {
  DecoderSpec decoder;
  GroupedQuerySpec heads;
  Mamba2Spec mamba;
  GraniteFactors factors;
  std::vector<bool> is_mamba;  // by layer
  int64_t num_experts = 0, shared_intermediate = 0;
  bool biased_attention = false, biased_mamba = false, biased_convolution = true;
};

Result<std::vector<bool>> read_layers(const Config& config, int64_t num_layers) {
  MORACLE_TRY(const std::vector<std::string> types,
              config.texts({"layer_types", "layers_block_type"}));
  if (types.empty()) return std::vector<bool>(static_cast<size_t>(num_layers), true);
  std::vector<bool> is_mamba;
  for (const std::string& type : types) {
    const bool mamba = type == "mamba" || type == "linear_attention";
    if (!mamba && type != "attention" && type != "full_attention")
      return config.unsupported({"layer_types"}, "mamba and attention", "it has " + type);
    is_mamba.push_back(mamba);
  }
  if (static_cast<int64_t>(types.size()) == num_layers) return is_mamba;
  return config.wrong({"layer_types"}, str("one for each of ", num_layers, " layers"),
                      str("it has ", types.size()));
}

// mamba_d_head may be "auto". In any case the heads have mamba_expand · hidden_size columns.
Result<Mamba2Spec> read_mamba(const Config& config, const DecoderSpec& decoder) {
  MORACLE_TRY(const int64_t heads, config.integer({"mamba_n_heads"}, 1, 1 << 14));
  MORACLE_TRY(const int64_t expand, config.integer({"mamba_expand"}, 1, 64));
  const int64_t inner = expand * decoder.hidden_size;
  const nlohmann::json* const dim = config.find({"mamba_d_head"});
  const bool given = dim != nullptr && *dim != "auto";
  MORACLE_TRY(const int64_t head_dim, given ? config.integer({"mamba_d_head"}, 1, 1 << 14)
                                            : Result<int64_t>(inner / heads));
  if (heads * head_dim != inner)
    return config.wrong({"mamba_n_heads"}, str("heads of together ", inner, " columns"),
                        str("it is ", heads, " heads of ", head_dim));
  return read_mamba2(config, decoder, head_dim,
                     {"mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"});
}

Result<Spec> read(const Config& config, int64_t num_layers) {
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  if (spec.decoder.activation != Activation::kSilu)
    return config.unsupported({"hidden_act"}, "silu, for Mamba-2", "it is another one");
  MORACLE_TRY(spec.factors, read_granite_factors(config, spec.decoder));
  MORACLE_TRY(const std::string positions, config.text_or("nope", {"position_embedding_type"}));
  if (positions != "rope" && positions != "nope")
    return config.unsupported({"position_embedding_type"}, "rope or nope", "it is " + positions);
  if (positions == "rope") {
    MORACLE_TRY(spec.heads, read_grouped_query(config, spec.decoder, false));
  } else {
    MORACLE_TRY(spec.heads, read_heads(config, spec.decoder));
    rotate_nothing(spec.heads.rotary);
  }
  spec.heads.scale = spec.factors.attention;
  MORACLE_TRY(spec.is_mamba, read_layers(config, num_layers));
  MORACLE_TRY(spec.mamba, read_mamba(config, spec.decoder));
  MORACLE_CHECK(read_step_limits(config, spec.mamba));
  MORACLE_TRY(spec.num_experts, config.integer({"num_local_experts"}, 0, 1 << 20));
  MORACLE_TRY(spec.shared_intermediate, config.integer({"shared_intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(spec.biased_attention, config.boolean_or(false, {"attention_bias"}));
  MORACLE_TRY(spec.biased_mamba, config.boolean_or(false, {"mamba_proj_bias"}));
  MORACLE_TRY(spec.biased_convolution, config.boolean_or(true, {"mamba_conv_bias"}));
  return spec;
}

Result<AttentionDescription> describe_attention(const Checkpoint& checkpoint,
                                                const std::string& prefix, const Spec& spec) {
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, prefix, spec.decoder, spec.heads,
                                     {spec.biased_attention, spec.biased_attention}));
  return AttentionDescription(std::move(attention));
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& spec,
                                        int64_t layer) {
  const std::string prefix = layer_prefix(checkpoint, layer);
  MORACLE_TRY(AttentionDescription attention,
              spec.is_mamba[static_cast<size_t>(layer)]
                  ? describe_mamba2(checkpoint, prefix + "mamba.", spec.decoder, spec.mamba,
                                    {spec.biased_convolution, spec.biased_mamba})
                  : describe_attention(checkpoint, prefix + "self_attn.", spec));
  MORACLE_TRY(DescribedWeights mlp, describe_granite_shared_mlp(checkpoint, prefix, spec.decoder,
                                                                spec.shared_intermediate));
  std::optional<RouterDescription> router;
  std::optional<SharedExpertDescription> shared;
  if (spec.num_experts > 0) {
    shared.emplace(SharedExpertDescription{std::move(mlp), {}});
    MORACLE_TRY(mlp, checkpoint.moe_layer(layer));
    MORACLE_TRY(router,
                describe_router(checkpoint, prefix + "block_sparse_moe.router.layer", mlp.spec));
  }
  MORACLE_TRY(LayerDescription described,
              describe_decoder_layer(checkpoint, spec.decoder, layer, std::move(attention),
                                     std::move(mlp), std::move(router), std::move(shared)));
  described.attention_output.scale = described.mlp_output.scale = spec.factors.residual;
  return described;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  MORACLE_TRY(Description description,
              describe_decoder(checkpoint, spec.decoder, [&](int64_t layer) {
                return describe_layer(checkpoint, spec, layer);
              }));
  divide_granite_logits(description, spec.factors);
  return description;
}

constexpr GgufKey kOwnGgufKeys[] = {
    {"expert_count", "num_local_experts"},
    {"ssm.conv_kernel", "mamba_d_conv"},
    {"ssm.state_size", "mamba_d_state"},
    {"ssm.group_count", "mamba_n_groups"},
    {"ssm.time_step_rank", "mamba_n_heads"},
    {"ssm.inner_size", "mamba_expand"},                            // until finish divides it
    {"rope.scaling.finetuned", "position_embedding_type", false},  // until finish names it
};
constexpr auto kGgufKeys = joined(kGraniteGgufKeys, kOwnGgufKeys);
// Without experts, the shared MLP is the feed-forward of llama.cpp.
constexpr GgufTensor kOwnGgufTensors[] = {
    {"blk.{L}.ffn_gate", "model.layers.{L}.shared_mlp.gate_proj"},
    {"blk.{L}.ffn_up", "model.layers.{L}.shared_mlp.up_proj"},
    {"blk.{L}.ffn_down", "model.layers.{L}.shared_mlp.down_proj"},
    {"blk.{L}.ssm_in", "model.layers.{L}.mamba.in_proj"},
    {"blk.{L}.ssm_conv1d", "model.layers.{L}.mamba.conv1d"},
    {"blk.{L}.ssm_a", "model.layers.{L}.mamba.A_log", {}, decay_logarithm, negative_decay, true},
    {"blk.{L}.ssm_d", "model.layers.{L}.mamba.D", {}, nullptr, nullptr, true},
    {"blk.{L}.ssm_dt.bias", "model.layers.{L}.mamba.dt_bias"},
    {"blk.{L}.ssm_norm", "model.layers.{L}.mamba.norm", {}, nullptr, nullptr, true},
    {"blk.{L}.ssm_out", "model.layers.{L}.mamba.out_proj"},
};
constexpr auto kGgufTensors = joined(kGraniteGgufTensors, kOwnGgufTensors);

Status finish_gguf(GgufModel& model) {
  nlohmann::json& config = model.config;
  MORACLE_CHECK(set_layers_by_kv_heads(model));
  MORACLE_TRY(config["mamba_d_head"], gguf_state_columns(model));
  MORACLE_TRY(const int64_t inner, gguf_integer(model, "ssm.inner_size"));
  MORACLE_TRY(const int64_t hidden, gguf_integer(model, "embedding_length"));
  const std::string size = gguf_key(model, "ssm.inner_size"),
                    rope = gguf_key(model, "rope.scaling.finetuned");
  if (inner % hidden != 0)
    return model.metadata.wrong({size.c_str()}, str("a multiple of the hidden size, ", hidden),
                                str("it is ", inner));
  config["mamba_expand"] = inner / hidden;
  MORACLE_TRY(const bool rotates, model.metadata.boolean_or(true, {rope.c_str()}));
  config["position_embedding_type"] = rotates ? "rope" : "nope";
  if (!config.contains("shared_intermediate_size"))
    config["shared_intermediate_size"] =
        config["num_local_experts"] == 0 ? config["intermediate_size"] : nlohmann::json(0);
  restore_mamba2_shapes(model, ".mamba");
  set_attention_bias(model);
  return undo_rotary_order(model);
}

Status write_gguf(GgufDraft& draft) {
  MORACLE_TRY(const Spec spec, read(draft.config, draft.num_layers));
  if (spec.mamba.inner() != 2 * spec.decoder.hidden_size)
    return draft.config.unsupported({"mamba_expand"}, "2, as in GGUF files of granitehybrid",
                                    "it is another number");
  put_kv_heads(draft, spec.is_mamba, spec.heads.num_kv_heads);
  put_gguf(draft, "ssm.inner_size", spec.mamba.inner());
  MORACLE_TRY(const std::string positions,
              draft.config.text_or("nope", {"position_embedding_type"}));
  put_gguf(draft, "rope.scaling.finetuned", positions == "rope");
  put_mamba2_shapes(draft, ".mamba", spec.mamba.num_groups);
  split_granite_shared_mlp(draft);
  if (spec.num_experts > 0) return {};
  draft.metadata.erase("granitehybrid.expert_shared_feed_forward_length");
  put_gguf(draft, "feed_forward_length", spec.shared_intermediate);
  put_gguf(draft, "expert_used_count", 0);
  for (int64_t layer = 0; layer < draft.num_layers; ++layer) {
    for (const char* const part : {"gate", "up", "down"}) {
      auto tensor =
          draft.tensors.extract(str("model.layers.", layer, ".shared_mlp.", part, "_proj.weight"));
      if (tensor.empty()) continue;
      tensor.key() = str("blk.", layer, ".ffn_", part, ".weight");
      draft.tensors.insert(std::move(tensor));
    }
  }
  return {};
}
constexpr GgufConvention kGguf[] = {{.architecture = "granitehybrid",
                                     .keys = kGgufKeys,
                                     .tensors = kGgufTensors,
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace granite_moe_hybrid

constinit const Family kGraniteMoeHybridFamily = {
    .architecture = "GraniteMoeHybridForCausalLM",
    .models = "Granite-4.0-H",
    .describe = granite_moe_hybrid::describe,
    .experts = {.defaults = granite_moe_hybrid::kDefaults,
                .names = kGraniteExperts,
                .intermediate_size = kGraniteSizeKeys,
                .score = Score::kTopkThenSoftmax,
                .gguf = granite_moe_hybrid::kGguf}};

}  // namespace moracle
