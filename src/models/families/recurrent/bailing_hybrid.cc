// Ling-3.0: Kimi Delta Attention whose decays have a lower bound, and in some layers MLA with a
// gate for each head. Dense first layers, then DeepSeek-V3's experts. The layers for multi-token
// prediction are not run.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/latent/latent_decoder.h"
#include "models/families/recurrent/kimi_delta.h"
#include "models/gguf/gguf_recurrent.h"

namespace moracle {
namespace bailing_hybrid {
namespace {

// The defaults of transformers' BailingHybridConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 157184, "hidden_size": 2560, "intermediate_size": 6144,
  "moe_intermediate_size": 768, "num_hidden_layers": 42, "num_attention_heads": 32,
  "num_shared_experts": 1, "routed_scaling_factor": 2.5, "kv_lora_rank": 512,
  "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "num_expert_group": 8,
  "topk_group": 4, "num_experts_per_token": 8, "first_k_dense_replace": 2,
  "moe_renormalize": true, "hidden_act": "silu", "model_max_length": 262144,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false,
  "num_experts": 512, "rope_theta": 6000000.0, "head_dim": 128, "short_conv_kernel_size": 4,
  "layer_group_size": 6, "kda_safe_gate": true, "kda_lower_bound": -5.0,
  "num_nextn_predict_layers": 1
})";

constexpr const char *kTopKKeysOf[] = {"num_experts_per_token", "num_experts_per_tok"},
                     *kRenormalizeKeysOf[] = {"moe_renormalize", "norm_topk_prob"};
constexpr std::string_view kBias = "model.layers.{L}.mlp.gate.expert_bias";

struct Spec {
  DecoderSpec decoder;
  LatentSpec latent;
  KimiDeltaSpec delta;
  std::vector<bool> is_delta;  // by layer
  SharedMoeSpec moe;
  bool biased = false;
};

Result<KimiDeltaSpec> read_delta(const Config& config, const DecoderSpec& decoder) {
  KimiDeltaSpec spec;
  MORACLE_TRY(spec.num_heads, config.integer({"num_attention_heads"}, 1, 1 << 12));
  // transformers overwrites head_dim with the columns of RoPE when it saves a file.
  MORACLE_TRY(spec.head_dim, config.integer({"linear_head_dim", "head_dim"}, 1, 1024));
  MORACLE_TRY(spec.kernel, config.integer({"short_conv_kernel_size"}, 2, 16));
  spec.norm_epsilon = decoder.norm_epsilon;
  MORACLE_TRY(const bool bounded, config.boolean_or(true, {"kda_safe_gate"}));
  if (!bounded) return spec;
  MORACLE_TRY(const double bound, config.number({"kda_lower_bound"}));
  if (!(bound < 0 && bound >= -1e6))
    return config.wrong({"kda_lower_bound"}, "a number below 0", str("it is ", bound));
  spec.lower_bound = static_cast<float>(bound);
  return spec;
}

// Without the key, transformers takes the context of its class, not that of the file.
Status require_original_context(const Config& config) {
  MORACLE_TRY(const std::optional<Config> rope, rotary_settings(config));
  const Config::Keys key = {"original_max_position_embeddings"};
  if (!rope || rope->has(key) || config.has(key)) return {};
  MORACLE_TRY(const std::string type, rope->text_or("default", {"rope_type", "type"}));
  if (type != "yarn" && type != "llama3") return {};
  return rope->unsupported(key, "a number for " + type, "it is missing");
}

Result<Spec> read(const Config& config, int64_t num_layers) {
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  if (spec.decoder.activation != Activation::kSilu)
    return config.unsupported({"hidden_act"}, "silu, for Kimi Delta Attention",
                              "it is another one");
  MORACLE_TRY(spec.delta, read_delta(config, spec.decoder));
  MORACLE_TRY(const int64_t group, config.integer({"layer_group_size"}, 1));
  std::vector<bool> grouped;
  for (int64_t layer = 1; layer <= num_layers; ++layer) grouped.push_back(layer % group != 0);
  MORACLE_TRY(spec.is_delta, read_delta_layers(config, std::move(grouped)));
  MORACLE_CHECK(require_original_context(config));
  MORACLE_TRY(spec.latent, read_latent(config));
  spec.latent.head_gate = true;
  MORACLE_TRY(spec.moe, read_shared_moe(config));
  MORACLE_CHECK(read_mlp_layer_types(config, num_layers, spec.moe));
  if (spec.moe.sparse_step != 1)
    return config.unsupported({"moe_layer_freq"}, "1", str("it is ", spec.moe.sparse_step));
  spec.moe.bias_name = kBias;
  MORACLE_CHECK(require_keys(config, {"topk_group", "routed_scaling_factor"}));
  MORACLE_TRY(spec.biased, config.boolean_or(false, {"attention_bias"}));
  // Published files have some of these keys, which transformers does not read.
  MORACLE_TRY(const std::string score, config.text_or("sigmoid", {"score_function"}));
  if (score != "sigmoid")
    return config.unsupported({"score_function"}, "sigmoid", "it is " + score);
  MORACLE_CHECK(require_score(config, "sigmoid"));
  MORACLE_CHECK(require_flag(config, "moe_router_enable_expert_bias", true));
  MORACLE_CHECK(require_flag(config, "rope_interleave", true));
  MORACLE_CHECK(require_flag(config, "use_bias", false));
  MORACLE_CHECK(require_flag(config, "use_qkv_bias", false));
  MORACLE_CHECK(require_flag(config, "no_kda_lora", true));
  MORACLE_CHECK(require_flag(config, "use_mla_nope", false));
  const char* const gate = "gated_attention_proj_granularity_type";
  MORACLE_TRY(const std::string granularity, config.text_or("head_wise", {gate}));
  if (granularity != "head_wise")
    return config.unsupported({gate}, "head_wise", "it is " + granularity);
  return spec;
}

Result<AttentionDescription> describe_attention(const Checkpoint& checkpoint, const Spec& spec,
                                                int64_t layer) {
  const std::string prefix = layer_prefix(checkpoint, layer) + "attention.";
  // transformers reads either name.
  const char* const o = checkpoint.has_tensor(prefix + "o_proj.weight") ? "o_proj" : "dense";
  if (spec.is_delta[static_cast<size_t>(layer)]) {
    MORACLE_TRY(KimiDeltaDescription delta,
                describe_kimi_delta(checkpoint, prefix, spec.decoder, spec.delta,
                                    {spec.delta.num_heads}, o));
    return AttentionDescription(std::move(delta));
  }
  // GGUF files have other names for gates of MLA than for those of KDA.
  const char* const gate = checkpoint.state().gguf ? "mla_g_proj" : "g_proj";
  MORACLE_TRY(LatentDescription latent,
              describe_latent(checkpoint, prefix, spec.decoder, spec.latent, spec.biased, o, gate));
  return AttentionDescription(std::move(latent));
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  const auto describe_layer = [&](int64_t layer) -> Result<LayerDescription> {
    MORACLE_TRY(AttentionDescription attention, describe_attention(checkpoint, spec, layer));
    return describe_shared_moe_layer(checkpoint, spec.decoder, spec.moe, layer,
                                     std::move(attention));
  };
  return describe_decoder(checkpoint, spec.decoder, describe_layer, "norm", "word_embeddings");
}

void logarithm(std::span<float> values) {
  for (float& value : values) value = std::log(value);
}
void exponential(std::span<float> values) {
  for (float& value : values) value = std::exp(value);
}

constexpr GgufKey kOwnGgufKeys[] = {
    {"context_length", "model_max_length"},
    {"feed_forward_length", "intermediate_size", false},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_count", "num_shared_experts"},
    {"leading_dense_block_count", "first_k_dense_replace"},
    {"expert_weights_scale", "routed_scaling_factor", false},
    {"expert_weights_norm", "moe_renormalize"},
    {"expert_group_count", "num_expert_group", false},
    {"expert_group_used_count", "topk_group", false},
    {"ssm.conv_kernel", "short_conv_kernel_size"},
    {"kda.head_dim", "linear_head_dim"},
    {"kda.safe_gate", "kda_safe_gate", false},
    {"kda.gate_lower_bound", "kda_lower_bound"},
};
constexpr auto kGgufKeys = joined(kOwnGgufKeys, kLatentGgufOwnKeys);
// GGUF stores exp(A_log).
constexpr GgufTensor kGgufTensors[] = {
    {"token_embd", "model.word_embeddings"},
    {"blk.{L}.attn_q", "model.layers.{L}.attention.q_proj"},
    {"blk.{L}.attn_k", "model.layers.{L}.attention.k_proj"},
    {"blk.{L}.attn_v", "model.layers.{L}.attention.v_proj"},
    {"blk.{L}.attn_output", "model.layers.{L}.attention.dense"},
    {"blk.{L}.ssm_conv1d_q", "model.layers.{L}.attention.q_conv1d", {}, nullptr, nullptr, true},
    {"blk.{L}.ssm_conv1d_k", "model.layers.{L}.attention.k_conv1d", {}, nullptr, nullptr, true},
    {"blk.{L}.ssm_conv1d_v", "model.layers.{L}.attention.v_conv1d", {}, nullptr, nullptr, true},
    {"blk.{L}.ssm_f_a", "model.layers.{L}.attention.f_proj"},
    {"blk.{L}.ssm_g_a", "model.layers.{L}.attention.g_proj"},
    {"blk.{L}.attn_gate", "model.layers.{L}.attention.mla_g_proj"},
    {"blk.{L}.ssm_beta", "model.layers.{L}.attention.b_proj"},
    {"blk.{L}.ssm_a", "model.layers.{L}.attention.A_log", {}, logarithm, exponential, true},
    {"blk.{L}.ssm_dt.bias", "model.layers.{L}.attention.dt_bias"},
    {"blk.{L}.ssm_norm", "model.layers.{L}.attention.o_norm"},
    {"blk.{L}.attn_q_a", "model.layers.{L}.attention.q_a_proj"},
    {"blk.{L}.attn_q_a_norm", "model.layers.{L}.attention.q_a_layernorm"},
    {"blk.{L}.attn_q_b", "model.layers.{L}.attention.q_b_proj"},
    {"blk.{L}.attn_kv_a_mqa", "model.layers.{L}.attention.kv_a_proj_with_mqa"},
    {"blk.{L}.attn_kv_a_norm", "model.layers.{L}.attention.kv_a_layernorm"},
    {"blk.{L}.exp_probs_b.bias", "model.layers.{L}.mlp.gate.expert_bias"},
    {"blk.{L}.ffn_gate_shexp", "model.layers.{L}.mlp.shared_experts.gate_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.mlp.shared_experts.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.mlp.shared_experts.down_proj"},
};
constexpr std::string_view kSharedKvB = ".self_attn.kv_b_proj.weight",
                           kOwnKvB = ".attention.kv_b_proj.weight";

// Keys that change the arithmetic and that this library does not have.
Status refuse_limits(const GgufModel& model) {
  for (const char* const name : {"swiglu_clamp_exp", "swiglu_clamp_shexp"}) {
    const std::string key = gguf_key(model, name);
    const nlohmann::json* const limits = model.metadata.find({key.c_str()});
    const auto is_zero = [](const nlohmann::json& limit) { return limit == 0; };
    if (limits == nullptr || std::all_of(limits->begin(), limits->end(), is_zero)) continue;
    return model.metadata.unsupported({key.c_str()}, "zeros: no limit", "it has others");
  }
  // llama.cpp scales the scores without YaRN's factor.
  const std::string type = gguf_key(model, "rope.scaling.type");
  MORACLE_TRY(const std::string scaling, model.metadata.text_or("none", {type.c_str()}));
  if (scaling == "none" || scaling == "linear") return {};
  return model.metadata.unsupported({type.c_str()}, "none or linear", "it is " + scaling);
}

Status finish_gguf(GgufModel& model) {
  MORACLE_CHECK(refuse_limits(model));
  MORACLE_CHECK(require_gating(model, GgufGating::kSigmoid));
  MORACLE_CHECK(set_layers_by_kv_heads(model));
  MORACLE_TRY(const int64_t heads, gguf_integer(model, "attention.head_count"));
  restore_kimi_delta_shapes(model, {heads});
  MORACLE_CHECK(finish_deepseek(model));
  rename_ending(model.tensors, kSharedKvB, kOwnKvB);
  return {};
}

Status write_gguf(GgufDraft& draft) {
  MORACLE_TRY(const Spec spec, read(draft.config, draft.num_layers));
  if (spec.delta.lower_bound == 0)
    return draft.config.unsupported({"kda_safe_gate"}, "true, as in GGUF files of bailingmoe3",
                                    "it is false");
  rename_ending(draft.tensors, kOwnKvB, kSharedKvB);
  MORACLE_CHECK(put_sigmoid_gating(draft));
  MORACLE_CHECK(put_latent(draft));
  put_kv_heads(draft, spec.is_delta, 1);
  put_gguf(draft, "context_length", spec.decoder.max_context);
  put_gguf(draft, "kda.head_dim", spec.delta.head_dim);
  put_gguf(draft, "kda.safe_gate", true);
  put_gguf(draft, "kda.gate_lower_bound", spec.delta.lower_bound);
  MORACLE_TRY(const int64_t groups, draft.config.integer_or(1, {"n_group", "num_expert_group"}, 1));
  MORACLE_TRY(const bool renormalized,
              draft.config.boolean_or(true, Config::Keys(std::begin(kRenormalizeKeysOf),
                                                         std::end(kRenormalizeKeysOf))));
  put_gguf(draft, "expert_group_count", groups);
  put_gguf(draft, "expert_weights_norm", renormalized);
  put_kimi_delta_shapes(draft);
  rename_ending(draft.tensors, ".attention.o_proj.weight", ".attention.dense.weight");
  for (int64_t layer = 0; layer < draft.num_layers; ++layer) {
    if (spec.is_delta[static_cast<size_t>(layer)]) continue;
    const std::string attention = str("layers.", layer, ".attention.");
    rename_ending(draft.tensors, attention + "g_proj.weight", attention + "mla_g_proj.weight");
  }
  return {};
}
constexpr GgufConvention kGguf[] = {{.architecture = "bailingmoe3",
                                     .keys = kGgufKeys,
                                     .tensors = kGgufTensors,
                                     .usual_heads = false,
                                     .constants = R"({"routed_scaling_factor": 1.0,
  "num_expert_group": 1, "topk_group": 1})",
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace bailing_hybrid

constinit const Family kBailingHybridFamily = {
    .architecture = "BailingHybridForCausalLM",
    .also = "BailingMoeV3ForCausalLM",
    .models = "Ling-3.0-Flash",
    .notes = "without multi-token prediction",
    .describe = bailing_hybrid::describe,
    .experts = {.defaults = bailing_hybrid::kDefaults,
                .top_k = bailing_hybrid::kTopKKeysOf,
                .score = Score::kSigmoid,
                .renormalize_keys = bailing_hybrid::kRenormalizeKeysOf,
                .correction_bias = bailing_hybrid::kBias,
                .gguf = bailing_hybrid::kGguf}};

}  // namespace moracle
