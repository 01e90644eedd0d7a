// Kimi-Linear: Kimi Delta Attention, and MLA without RoPE in some layers. Dense first layers, then
// DeepSeek-V3's experts.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/recurrent/kimi_delta.h"
#include "models/gguf/gguf_recurrent.h"

namespace moracle {
namespace kimi_linear {
namespace {

// The defaults of transformers' KimiLinearConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 163840, "hidden_size": 2304, "intermediate_size": 9216,
  "moe_intermediate_size": 1024, "num_hidden_layers": 27, "num_attention_heads": 32,
  "num_shared_experts": 1, "routed_scaling_factor": 2.446, "kv_lora_rank": 512,
  "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "num_expert_group": 1,
  "topk_group": 1, "num_experts_per_token": 8, "moe_renormalize": true, "hidden_act": "silu",
  "model_max_length": 1048576, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "attention_bias": false, "num_experts": 256, "linear_head_dim": 128, "linear_num_heads": 32,
  "linear_conv_kernel_dim": 4, "first_k_dense_replace": 1
})";

constexpr const char *kTopKKeysOf[] = {"num_experts_per_token", "num_experts_per_tok"},
                     *kRenormalizeKeysOf[] = {"moe_renormalize", "norm_topk_prob"};
constexpr std::string_view kBias = "model.layers.{L}.block_sparse_moe.gate.e_score_correction_bias";

struct Spec {
  DecoderSpec decoder;
  LatentSpec latent;
  KimiDeltaSpec delta;
  std::vector<bool> is_delta;  // by layer
  SharedMoeSpec moe;
  bool biased = false;
};

// The lists of layers in linear_attn_config count from 1.
Result<std::vector<bool>> listed_layers(const std::optional<Config>& linear, int64_t num_layers) {
  std::vector<bool> is_delta;
  const bool listed = linear && linear->has({"full_attn_layers"}) && linear->has({"kda_layers"});
  for (int64_t layer = 0; !listed && layer < num_layers; ++layer)
    is_delta.push_back(layer == 0 || layer % 4 != 0);
  if (!listed) return is_delta;
  MORACLE_TRY(const std::vector<int64_t> full, linear->integers({"full_attn_layers"}));
  MORACLE_TRY(const std::vector<int64_t> delta, linear->integers({"kda_layers"}));
  const auto holds = [](const std::vector<int64_t>& list, int64_t layer) {
    return std::find(list.begin(), list.end(), layer) != list.end();
  };
  for (int64_t layer = 1; layer <= num_layers; ++layer) {
    if (holds(full, layer) == holds(delta, layer)) {
      return linear->wrong(
          {"kda_layers"},
          str("each layer from 1 to ", num_layers, ", or full_attn_layers in its place"),
          str("layer ", layer, " is in ", holds(full, layer) ? "both" : "none"));
    }
    is_delta.push_back(holds(delta, layer));
  }
  return is_delta;
}

Result<KimiDeltaSpec> read_delta(const Config& config, const std::optional<Config>& linear,
                                 const DecoderSpec& decoder) {
  KimiDeltaSpec spec;
  const auto read = [&](const char* among, const char* beside, int64_t least,
                        int64_t most) -> Result<int64_t> {
    if (linear && linear->has({among})) return linear->integer({among}, least, most);
    return config.integer({beside}, least, most);
  };
  MORACLE_TRY(spec.head_dim, read("head_dim", "linear_head_dim", 1, 1024));
  MORACLE_TRY(spec.num_heads, read("num_heads", "linear_num_heads", 1, 1 << 12));
  MORACLE_TRY(spec.kernel, read("short_conv_kernel_size", "linear_conv_kernel_dim", 2, 16));
  spec.rank = spec.head_dim;
  spec.norm_epsilon = decoder.norm_epsilon;
  return spec;
}

Result<Spec> read(const Config& config, int64_t num_layers) {
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  if (spec.decoder.activation != Activation::kSilu)
    return config.unsupported({"hidden_act"}, "silu, for Kimi Delta Attention",
                              "it is another one");
  MORACLE_TRY(const std::optional<Config> linear, config.object({"linear_attn_config"}));
  MORACLE_TRY(spec.delta, read_delta(config, linear, spec.decoder));
  MORACLE_TRY(std::vector<bool> listed, listed_layers(linear, num_layers));
  MORACLE_TRY(spec.is_delta, read_delta_layers(config, std::move(listed)));
  MORACLE_TRY(spec.latent, read_latent_sizes(config));
  // No column rotates, whatever the keys of RoPE say.
  spec.latent.rotary.frequencies.assign(static_cast<size_t>(spec.latent.rope_dim / 2), 0.0f);
  spec.latent.scale = 1.0f / std::sqrt(static_cast<float>(spec.latent.head_dim()));
  MORACLE_TRY(spec.moe, read_shared_moe(config));
  MORACLE_CHECK(read_mlp_layer_types(config, num_layers, spec.moe));
  MORACLE_CHECK(check_dense_layers(config, spec.moe));
  if (spec.moe.sparse_step != 1)
    return config.unsupported({"moe_layer_freq"}, "1", str("it is ", spec.moe.sparse_step));
  MORACLE_CHECK(require_keys(config, {"routed_scaling_factor"}));
  MORACLE_TRY(spec.biased, config.boolean_or(false, {"attention_bias"}));
  // Published files have these keys, which transformers does not read.
  MORACLE_CHECK(require_flag(config, "mla_use_nope", true));
  MORACLE_CHECK(require_flag(config, "use_grouped_topk", true));
  MORACLE_TRY(const std::string score, config.text_or("sigmoid", {"moe_router_activation_func"}));
  if (score != "sigmoid")
    return config.unsupported({"moe_router_activation_func"}, "sigmoid", "it is " + score);
  return spec;
}

Result<AttentionDescription> describe_attention(const Checkpoint& checkpoint, const Spec& spec,
                                                int64_t layer) {
  const std::string prefix = layer_prefix(checkpoint, layer) + "self_attn.";
  if (spec.is_delta[static_cast<size_t>(layer)]) {
    MORACLE_TRY(KimiDeltaDescription delta,
                describe_kimi_delta(checkpoint, prefix, spec.decoder, spec.delta,
                                    {1, 1, spec.delta.num_heads, 1}, "o_proj"));
    return AttentionDescription(std::move(delta));
  }
  MORACLE_TRY(LatentDescription latent,
              describe_latent(checkpoint, prefix, spec.decoder, spec.latent, spec.biased));
  return AttentionDescription(std::move(latent));
}

// transformers saves dense MLPs under the name of the experts, too.
std::string dense_name(const Checkpoint& checkpoint, int64_t layer) {
  const std::string prefix = layer_prefix(checkpoint, layer);
  for (const char* const end : {"gate_proj", "up_proj", "down_proj"})
    if (checkpoint.has_tensor(str(prefix, "mlp.", end, ".weight"))) return prefix + "mlp";
  return prefix + "block_sparse_moe";
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& spec,
                                        int64_t layer) {
  MORACLE_TRY(AttentionDescription attention, describe_attention(checkpoint, spec, layer));
  if (spec.moe.is_dense(layer)) {
    MORACLE_TRY(DescribedWeights mlp,
                describe_dense_mlp(checkpoint, dense_name(checkpoint, layer), spec.decoder,
                                   spec.moe.dense_intermediate));
    return describe_decoder_layer(checkpoint, spec.decoder, layer, std::move(attention),
                                  std::move(mlp));
  }
  const std::string moe = layer_prefix(checkpoint, layer) + "block_sparse_moe.";
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  experts.spec.routing.correction_bias = true;  // a file without it is incomplete
  MORACLE_TRY(RouterDescription router, describe_router(checkpoint, moe + "gate", experts.spec));
  std::optional<SharedExpertDescription> shared;
  if (spec.moe.shared_intermediate > 0) {
    MORACLE_TRY(shared, describe_shared_expert(checkpoint, moe + "shared_experts", "", spec.decoder,
                                               spec.moe.shared_intermediate));
  }
  return describe_decoder_layer(checkpoint, spec.decoder, layer, std::move(attention),
                                std::move(experts), std::move(router), std::move(shared));
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  return describe_decoder(checkpoint, spec.decoder,
                          [&](int64_t layer) { return describe_layer(checkpoint, spec, layer); });
}

constexpr GgufKey kGgufKeys[] = {
    {"context_length", "model_max_length"},
    {"feed_forward_length", "intermediate_size", false},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_count", "num_shared_experts"},
    {"leading_dense_block_count", "first_k_dense_replace", false},
    {"expert_weights_scale", "routed_scaling_factor", false},
    {"attention.kv_lora_rank", "kv_lora_rank"},
    {"rope.dimension_count", "qk_rope_head_dim"},
    {"ssm.conv_kernel", "linear_conv_kernel_dim"},
    {"kda.head_dim", "linear_head_dim"},
};
constexpr GgufTensor kOwnGgufTensors[] = {
    {"blk.{L}.ssm_conv1d_q", "model.layers.{L}.self_attn.q_conv1d", {}, nullptr, nullptr, true},
    {"blk.{L}.ssm_conv1d_k", "model.layers.{L}.self_attn.k_conv1d", {}, nullptr, nullptr, true},
    {"blk.{L}.ssm_conv1d_v", "model.layers.{L}.self_attn.v_conv1d", {}, nullptr, nullptr, true},
    {"blk.{L}.ssm_f_a", "model.layers.{L}.self_attn.f_a_proj"},
    {"blk.{L}.ssm_f_b", "model.layers.{L}.self_attn.f_b_proj"},
    {"blk.{L}.ssm_g_a", "model.layers.{L}.self_attn.g_a_proj"},
    {"blk.{L}.ssm_g_b", "model.layers.{L}.self_attn.g_b_proj"},
    {"blk.{L}.ssm_beta", "model.layers.{L}.self_attn.b_proj"},
    {"blk.{L}.ssm_a",
     "model.layers.{L}.self_attn.A_log",
     {},
     decay_logarithm,
     negative_decay,
     true},
    {"blk.{L}.ssm_dt.bias", "model.layers.{L}.self_attn.dt_bias"},
    {"blk.{L}.ssm_norm", "model.layers.{L}.self_attn.o_norm"},
    {"blk.{L}.attn_kv_a_mqa", "model.layers.{L}.self_attn.kv_a_proj_with_mqa"},
    {"blk.{L}.attn_kv_a_norm", "model.layers.{L}.self_attn.kv_a_layernorm"},
    {"blk.{L}.attn_kv_b", "model.layers.{L}.self_attn.kv_b_proj"},
    {"blk.{L}.exp_probs_b.bias", "model.layers.{L}.block_sparse_moe.gate.e_score_correction_bias"},
    {"blk.{L}.ffn_gate_shexp", "model.layers.{L}.block_sparse_moe.shared_experts.gate_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.block_sparse_moe.shared_experts.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.block_sparse_moe.shared_experts.down_proj"},
};
constexpr auto kGgufTensors = joined(kBlockSparseGgufTensors, kOwnGgufTensors);

Status finish_gguf(GgufModel& model) {
  MORACLE_CHECK(require_gating(model, GgufGating::kSigmoid));
  MORACLE_CHECK(set_layers_by_kv_heads(model));
  MORACLE_TRY(const int64_t heads, gguf_integer(model, "attention.head_count"));
  model.config["linear_num_heads"] = heads;
  restore_kimi_delta_shapes(model, {1, 1, heads, 1});
  return finish_deepseek(model);
}

Status write_gguf(GgufDraft& draft) {
  MORACLE_TRY(const Spec spec, read(draft.config, draft.num_layers));
  if (spec.delta.num_heads != spec.latent.num_heads)
    return draft.config.unsupported({"linear_attn_config"},
                                    str(spec.latent.num_heads, " heads, as in other layers"),
                                    str("num_heads is ", spec.delta.num_heads));
  MORACLE_CHECK(put_sigmoid_gating(draft));
  MORACLE_CHECK(put_latent(draft));
  put_kv_heads(draft, spec.is_delta, 1);
  put_gguf(draft, "context_length", spec.decoder.max_context);
  put_gguf(draft, "ssm.conv_kernel", spec.delta.kernel);
  put_gguf(draft, "kda.head_dim", spec.delta.head_dim);
  put_kimi_delta_shapes(draft);
  for (const char* const part : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"})
    rename_ending(draft.tensors, str(".block_sparse_moe.", part), str(".mlp.", part));
  return {};
}
// The heads of all layers are as many. llama.cpp always renormalizes the weights of experts.
constexpr GgufConvention kGguf[] = {{.architecture = "kimi-linear",
                                     .keys = kGgufKeys,
                                     .tensors = kGgufTensors,
                                     .usual_heads = false,
                                     .constants = R"({"first_k_dense_replace": 0,
  "routed_scaling_factor": 1.0, "num_expert_group": 1, "topk_group": 1, "moe_renormalize": true})",
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace kimi_linear

constinit const Family kKimiLinearFamily = {
    .architecture = "KimiLinearForCausalLM",
    .models = "Kimi-Linear",
    .notes = "without multi-token prediction",
    .describe = kimi_linear::describe,
    .experts = {.defaults = kimi_linear::kDefaults,
                .top_k = kimi_linear::kTopKKeysOf,
                .score = Score::kSigmoid,
                .renormalize_keys = kimi_linear::kRenormalizeKeysOf,
                .correction_bias = kimi_linear::kBias,
                .gguf = kimi_linear::kGguf}};

}  // namespace moracle
