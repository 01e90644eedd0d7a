// Nemotron-H and Nemotron-3: every layer is one of Mamba-2, attention without RoPE, an MLP or
// experts. MLPs and experts have no gate. Routing as DeepSeek-V3's; one shared expert. The experts
// of Nemotron-3 Super and Ultra read a latent vector. Layers for multi-token prediction are not
// run. Mamba-2 has heads × columns of a head, whatever `expand` says.
#include <limits>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/families/recurrent/mamba_layers.h"
#include "models/gguf/gguf_recurrent.h"

namespace moracle {
namespace nemotron_h {
namespace {

// The defaults of transformers' NemotronHConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 131072, "hidden_size": 4096, "tie_word_embeddings": false,
  "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "num_attention_heads": 32,
  "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096,
  "attention_bias": false, "intermediate_size": 21504, "mlp_hidden_act": "relu2",
  "mlp_bias": false, "ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64,
  "mamba_hidden_act": "silu", "n_groups": 8, "conv_kernel": 4, "use_conv_bias": true,
  "n_routed_experts": 8, "moe_intermediate_size": 7688,
  "moe_shared_expert_intermediate_size": 7688, "num_experts_per_tok": 2,
  "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
  "use_bias": false, "layer_norm_epsilon": 1e-05, "num_nextn_predict_layers": 0,
  "time_step_limit": [0.0, {"__float__": "Infinity"}], "time_step_min": 0.001
})";

constexpr ExpertNames kNames[] = {{"model.layers.{L}.mixer.experts", "", "up_proj", "down_proj"},
                                  {.experts = "model.layers.{L}.mixer.experts",
                                   .up = "up_proj",
                                   .down = "down_proj",
                                   .fused = true}};
constexpr const char* kHiddenSize[] = {"moe_latent_size", "hidden_size"};
constexpr const char* kActivation[] = {"mlp_hidden_act"};
constexpr const char* kLayers[] = {"layers_block_type", "layer_types", "hybrid_override_pattern"};
constexpr MlpNames kMlpNames = {"up_proj", nullptr, "down_proj"};

enum class Kind : uint8_t { kMamba, kAttention, kMlp, kExperts };

struct Spec {
  DecoderSpec decoder;
  GroupedQuerySpec heads;
  Mamba2Spec mamba;
  std::vector<Kind> layers;
  bool biased_mlp = false, biased_mamba = false, biased_convolution = true;
};

// transformers 5.24 renamed two kinds. Letters are those of hybrid_override_pattern.
std::optional<Kind> kind_of(std::string_view name) {
  if (name == "mamba" || name == "linear_attention" || name == "M") return Kind::kMamba;
  if (name == "attention" || name == "full_attention" || name == "*") return Kind::kAttention;
  if (name == "mlp" || name == "-") return Kind::kMlp;
  if (name == "moe" || name == "E") return Kind::kExperts;
  return {};
}

Result<std::vector<Kind>> read_layers(const Config& config) {
  const Config::Keys keys(std::begin(kLayers), std::end(kLayers));
  const nlohmann::json* const list = config.find(keys);
  std::vector<std::string> names;
  if (list != nullptr && list->is_string()) {
    for (const char letter : list->get<std::string>()) names.emplace_back(1, letter);
  } else {
    MORACLE_TRY(names, config.texts(keys));
  }
  std::vector<Kind> layers;
  for (const std::string& name : names) {
    const std::optional<Kind> kind = kind_of(name);
    if (!kind)
      return config.unsupported(keys, "mamba (M), attention (*), mlp (-) and moe (E)",
                                "it has " + name);
    layers.push_back(*kind);
  }
  return layers;
}

// As transformers has it in prompts, for every token. Its code for single tokens does not clamp,
// and the authors' code clamps to time_step_limit.
Status read_least_step(const Config& config, Mamba2Spec& mamba) {
  MORACLE_CHECK(read_step_limits(config, mamba));
  if (mamba.least_step > 0 || mamba.most_step < std::numeric_limits<float>::infinity())
    return config.unsupported({"time_step_limit"}, "0 and infinity, which transformers uses",
                              "it has others");
  MORACLE_TRY(const double least, config.number({"time_step_min"}));
  if (!(least >= 0 && least <= 1e6))
    return config.wrong({"time_step_min"}, "a number from 0", str("it is ", least));
  mamba.least_step = static_cast<float>(least);
  return {};
}

Result<Spec> read(const Config& config) {
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config, "layer_norm_epsilon"));
  MORACLE_TRY(spec.decoder.activation, read_ungated(config, "mlp_hidden_act"));
  MORACLE_TRY(spec.heads, read_heads(config, spec.decoder));
  MORACLE_TRY(const int64_t older,
              config.integer_or(spec.heads.head_dim, {"attention_head_dim"}, 1, 1 << 16));
  if (older != spec.heads.head_dim)
    return config.unsupported({"attention_head_dim"}, str("head_dim, ", spec.heads.head_dim),
                              str("it is ", older));
  if (config.has({"sliding_window"}))
    return config.unsupported({"sliding_window"}, "null", "it is set");
  rotate_nothing(spec.heads.rotary);
  MORACLE_TRY(spec.layers, read_layers(config));
  MORACLE_TRY(const int64_t head_dim, config.integer({"mamba_head_dim"}, 1, 1 << 14));
  MORACLE_TRY(spec.mamba,
              read_mamba2(config, spec.decoder, head_dim,
                          {"mamba_num_heads", "n_groups", "ssm_state_size", "conv_kernel"}));
  MORACLE_CHECK(read_least_step(config, spec.mamba));
  MORACLE_TRY(const std::string function, config.text_or("silu", {"mamba_hidden_act"}));
  if (function != "silu" && function != "swish")
    return config.unsupported({"mamba_hidden_act"}, "silu", "it is " + function);
  // transformers ignores it.
  MORACLE_CHECK(require_flag(config, "attention_bias", false));
  MORACLE_TRY(spec.biased_mlp, config.boolean_or(false, {"mlp_bias"}));
  MORACLE_TRY(spec.biased_mamba, config.boolean_or(false, {"use_bias"}));
  MORACLE_TRY(spec.biased_convolution, config.boolean_or(true, {"use_conv_bias"}));
  return spec;
}

Result<DescribedWeights> describe_mlp(const Checkpoint& checkpoint, const std::string& mlp,
                                      const Spec& spec, int64_t intermediate) {
  if (spec.biased_mlp)
    MORACLE_CHECK(require_bias(checkpoint, {mlp + ".up_proj", mlp + ".down_proj"}));
  return describe_dense_mlp(checkpoint, mlp, spec.decoder, intermediate, kMlpNames);
}

Status describe_experts(const Checkpoint& checkpoint, const std::string& mixer, const Spec& spec,
                        int64_t layer, LayerDescription& described) {
  const Config& config = checkpoint.state().config;
  const int64_t hidden = spec.decoder.hidden_size;
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  experts.spec.routing.correction_bias = true;
  const int64_t latent = experts.spec.hidden_size;
  LayerSpec routed = experts.spec;
  routed.hidden_size = hidden;
  MORACLE_TRY(described.router, describe_router(checkpoint, mixer + ".gate", routed));
  if (config.has({"moe_latent_size"})) {
    const auto linear = spec.biased_mlp ? describe_biased_linear : describe_linear;
    MORACLE_TRY(DescribedMatrix down,
                linear(checkpoint, {mixer + ".fc1_latent_proj"}, {latent}, hidden));
    MORACLE_TRY(DescribedMatrix up,
                linear(checkpoint, {mixer + ".fc2_latent_proj"}, {hidden}, latent));
    described.latent.emplace(LatentExpertsDescription{std::move(down), std::move(up)});
  }
  described.mlp.emplace(std::move(experts));
  MORACLE_TRY(const int64_t intermediate,
              config.integer({"moe_shared_expert_intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(DescribedWeights shared,
              describe_mlp(checkpoint, mixer + ".shared_experts", spec, intermediate));
  described.shared.emplace(SharedExpertDescription{std::move(shared), {}});
  return {};
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& spec,
                                        int64_t layer) {
  const std::string prefix = layer_prefix(checkpoint, layer), mixer = prefix + "mixer";
  MORACLE_TRY(auto norm,
              describe_norm(checkpoint, prefix + "norm", spec.decoder.hidden_size, spec.decoder));
  LayerDescription described{.attention = NoAttentionDescription{}};
  const Kind kind = spec.layers[static_cast<size_t>(layer)];
  const bool attends = kind == Kind::kMamba || kind == Kind::kAttention;
  (attends ? described.input_norm : described.post_norm) = std::move(norm);
  if (kind == Kind::kMamba) {
    MORACLE_TRY(described.attention,
                describe_mamba2(checkpoint, mixer + ".", spec.decoder, spec.mamba,
                                {spec.biased_convolution, spec.biased_mamba}));
  } else if (kind == Kind::kAttention) {
    MORACLE_TRY(described.attention,
                describe_grouped_query(checkpoint, mixer + ".", spec.decoder, spec.heads));
  } else if (kind == Kind::kMlp) {
    MORACLE_TRY(const int64_t intermediate,
                checkpoint.state().config.integer({"intermediate_size"}, 1, 1 << 24));
    MORACLE_TRY(described.mlp, describe_mlp(checkpoint, mixer, spec, intermediate));
  } else {
    MORACLE_CHECK(describe_experts(checkpoint, mixer, spec, layer, described));
  }
  return described;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config));
  return describe_decoder(
      checkpoint, spec.decoder,
      [&](int64_t layer) { return describe_layer(checkpoint, spec, layer); }, "norm_f",
      "embeddings");
}

constexpr GgufKey kGgufKeys[] = {
    {"attention.layer_norm_epsilon", "layer_norm_epsilon"},
    {"attention.layer_norm_rms_epsilon", "layer_norm_epsilon", false, true},
    {"attention.key_length", "head_dim"},
    {"attention.value_length", "head_dim", false, true},
    {"ssm.conv_kernel", "conv_kernel"},
    {"ssm.state_size", "ssm_state_size"},
    {"ssm.group_count", "n_groups"},
    {"ssm.time_step_rank", "mamba_num_heads"},
    {"ssm.inner_size", "mamba_head_dim"},  // until finish divides it
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"},
    {"expert_weights_scale", "routed_scaling_factor", false},
    {"expert_weights_norm", "norm_topk_prob"},
    {"expert_group_count", "n_group", false},
    {"expert_group_used_count", "topk_group", false},
    {"moe_latent_size", "moe_latent_size", false},
};
constexpr GgufTensor kGgufTensors[] = {
    {"token_embd", "model.embeddings"},
    {"output_norm", "model.norm_f"},
    {"blk.{L}.attn_norm", "model.layers.{L}.norm"},
    {"blk.{L}.attn_q", "model.layers.{L}.mixer.q_proj"},
    {"blk.{L}.attn_k", "model.layers.{L}.mixer.k_proj"},
    {"blk.{L}.attn_v", "model.layers.{L}.mixer.v_proj"},
    {"blk.{L}.attn_output", "model.layers.{L}.mixer.o_proj"},
    {"blk.{L}.ssm_in", "model.layers.{L}.mixer.in_proj"},
    {"blk.{L}.ssm_conv1d", "model.layers.{L}.mixer.conv1d"},
    {"blk.{L}.ssm_a", "model.layers.{L}.mixer.A_log", {}, decay_logarithm, negative_decay, true},
    {"blk.{L}.ssm_d", "model.layers.{L}.mixer.D", {}, nullptr, nullptr, true},
    {"blk.{L}.ssm_dt.bias", "model.layers.{L}.mixer.dt_bias"},
    {"blk.{L}.ssm_norm", "model.layers.{L}.mixer.norm", {}, nullptr, nullptr, true},
    {"blk.{L}.ssm_out", "model.layers.{L}.mixer.out_proj"},
    {"blk.{L}.ffn_gate_inp", "model.layers.{L}.mixer.gate"},
    {"blk.{L}.exp_probs_b.bias", "model.layers.{L}.mixer.gate.e_score_correction_bias"},
    {"blk.{L}.ffn_up_exps", "model.layers.{L}.mixer.experts.{E}.up_proj"},
    {"blk.{L}.ffn_down_exps", "model.layers.{L}.mixer.experts.{E}.down_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.mixer.shared_experts.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.mixer.shared_experts.down_proj"},
    {"blk.{L}.ffn_latent_down", "model.layers.{L}.mixer.fc1_latent_proj"},
    {"blk.{L}.ffn_latent_up", "model.layers.{L}.mixer.fc2_latent_proj"},
};

// Layers have heads of keys, or columns of experts, or are Mamba-2.
Status finish_gguf(GgufModel& model) {
  nlohmann::json& config = model.config;
  MORACLE_CHECK(require_gating(model, GgufGating::kSigmoid));
  MORACLE_CHECK(set_layers_by_kv_heads(model));
  MORACLE_TRY(const std::vector<int64_t> columns, gguf_layer_numbers(model, "feed_forward_length"));
  nlohmann::json types = std::move(config["layer_types"]);
  config.erase("layer_types");
  for (size_t layer = 0; layer < columns.size(); ++layer) {
    if (columns[layer] > 0) types[layer] = "moe";
  }
  config["layers_block_type"] = std::move(types);
  MORACLE_TRY(config["mamba_head_dim"], gguf_state_columns(model));
  restore_mamba2_shapes(model, ".mixer");
  return {};
}

Status write_gguf(GgufDraft& draft) {
  MORACLE_TRY(const Spec spec, read(draft.config));
  nlohmann::json heads = nlohmann::json::array(), columns = heads;
  MORACLE_TRY(const int64_t intermediate,
              draft.config.integer({"moe_intermediate_size"}, 1, 1 << 24));
  for (const Kind kind : spec.layers) {
    if (kind == Kind::kMlp)
      return draft.config.unsupported(
          Config::Keys(std::begin(kLayers), std::end(kLayers)),
          "mamba, attention and moe, which GGUF files of nemotron_h_moe have", "it has mlp");
    heads.push_back(kind == Kind::kAttention ? spec.heads.num_kv_heads : 0);
    columns.push_back(kind == Kind::kExperts ? intermediate : 0);
  }
  put_gguf(draft, "attention.head_count_kv", std::move(heads));
  put_gguf(draft, "feed_forward_length", std::move(columns));
  put_gguf(draft, "ssm.inner_size", spec.mamba.inner());
  put_gguf(draft, "expert_shared_count", 1);
  put_mamba2_shapes(draft, ".mixer", spec.mamba.num_groups);
  return put_sigmoid_gating(draft);
}
// llama.cpp's activation is relu2, and it has no least step of Mamba-2. The default of
// time_step_min counts, which published models have.
constexpr GgufConvention kGguf[] = {{.architecture = "nemotron_h_moe",
                                     .keys = kGgufKeys,
                                     .tensors = kGgufTensors,
                                     .usual_heads = false,
                                     .constants = R"({"n_group": 1, "topk_group": 1,
  "routed_scaling_factor": 1.0})",
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace nemotron_h

constinit const Family kNemotronHFamily = {
    .architecture = "NemotronHForCausalLM",
    .models = "Nemotron-H, Nemotron-3",
    .notes = "without multi-token prediction",
    .describe = nemotron_h::describe,
    .experts = {.defaults = nemotron_h::kDefaults,
                .names = nemotron_h::kNames,
                .hidden_size = nemotron_h::kHiddenSize,
                .score = Score::kSigmoid,
                .correction_bias = "model.layers.{L}.mixer.gate.e_score_correction_bias",
                .activation_keys = nemotron_h::kActivation,
                .gated = false,
                .layer_lists = nemotron_h::kLayers,
                .gguf = nemotron_h::kGguf}};

}  // namespace moracle
