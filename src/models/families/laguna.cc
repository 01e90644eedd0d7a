// Laguna: GQA with norms on q and k and a softplus gate on the output, one for each head or each
// column. Layers have their own number of heads; those with a window have a RoPE of their own.
// Dense first layer, sigmoid routing with a correction bias, a shared expert.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/shared_moe.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace laguna {
namespace {

// The defaults of transformers' LagunaConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40,
  "num_attention_heads": 48, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
  "sliding_window": 512, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
  "num_experts_per_tok": 8, "num_experts": 256, "head_dim": 128, "attention_bias": false,
  "gating": true, "moe_routed_scaling_factor": 1.0, "moe_apply_router_weight_on_input": false,
  "moe_router_logit_softcapping": 0.0,
  "rope_parameters": {
    "full_attention": {
      "rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5
    },
    "sliding_attention": {
      "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0
    }
  }
})";

constexpr const char* kScale[] = {"moe_routed_scaling_factor"};
constexpr std::string_view kBias = "model.layers.{L}.mlp.experts.e_score_correction_bias";

struct Spec {
  DecoderSpec decoder;
  std::vector<GroupedQuerySpec> heads;  // by layer
  SharedMoeSpec moe;
};

Result<OutputGate> read_gate(const Config& config) {
  const nlohmann::json* const gating = config.find({"gating"});
  if (gating != nullptr && (*gating == true || *gating == "per-head")) return OutputGate::kPerHead;
  if (gating != nullptr && *gating == "per-element") return OutputGate::kAfterValues;
  return config.unsupported({"gating"}, "true, per-head or per-element", "it is another value");
}

Result<std::vector<GroupedQuerySpec>> read_layers(const Config& config, const DecoderSpec& decoder,
                                                  int64_t num_layers) {
  MORACLE_TRY(std::vector<GroupedQuerySpec> layers,
              read_windowed_layers(config, decoder, num_layers, [](int64_t) { return false; },
                                   {.partial = true}));
  MORACLE_TRY(const OutputGate gate, read_gate(config));
  MORACLE_TRY(const std::vector<int64_t> heads, config.integers({"num_attention_heads_per_layer"}));
  if (!heads.empty() && static_cast<int64_t>(heads.size()) != num_layers) {
    return config.wrong({"num_attention_heads_per_layer"},
                        str("one for each of ", num_layers, " layers"),
                        str("it has ", heads.size()));
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    GroupedQuerySpec& own = layers[l];
    own.output_gate = gate;
    own.softplus_gate = true;
    if (heads.empty()) continue;
    own.num_heads = heads[l];
    if (own.num_heads >= 1 && own.num_heads <= 1 << 16 && own.num_heads % own.num_kv_heads == 0)
      continue;
    return config.wrong({"num_attention_heads_per_layer"},
                        str("multiples of ", own.num_kv_heads, " heads of keys"),
                        str("it is ", own.num_heads, " for layer ", l));
  }
  return layers;
}

Result<Spec> read(const Config& config, int64_t num_layers) {
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  MORACLE_TRY(spec.heads, read_layers(config, spec.decoder, num_layers));
  MORACLE_CHECK(require_flag(config, "attention_bias", false));
  MORACLE_CHECK(require_flag(config, "moe_apply_router_weight_on_input", false));
  MORACLE_TRY(const double cap, config.number_or(0, {"moe_router_logit_softcapping"}));
  if (cap > 0) return config.unsupported({"moe_router_logit_softcapping"}, "0", str("it is ", cap));
  MORACLE_CHECK(require_keys(config, {"moe_routed_scaling_factor"}));
  SharedMoeSpec& moe = spec.moe;
  moe.dense_layers = 1;
  moe.shared = "shared_expert";
  moe.bias_name = kBias;
  MORACLE_TRY(moe.dense_intermediate, config.integer({"intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(moe.shared_intermediate,
              config.integer({"shared_expert_intermediate_size"}, 1, 1 << 24));
  MORACLE_CHECK(read_mlp_layer_types(config, num_layers, moe));
  // Keys of Qwen2-MoE, whose configuration class transformers extends without them.
  MORACLE_CHECK(require_flag(config, "norm_topk_prob", true));
  MORACLE_TRY(const std::vector<int64_t> dense, config.integers({"mlp_only_layers"}));
  for (const int64_t layer : dense) {
    if (layer < 0 || layer >= num_layers || moe.is_dense(layer)) continue;
    return config.unsupported({"mlp_only_layers"}, "the dense layers of mlp_layer_types",
                              str("it has ", layer));
  }
  return spec;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  const auto describe_layer = [&](int64_t layer) -> Result<LayerDescription> {
    const std::string self_attn = layer_prefix(checkpoint, layer) + "self_attn.";
    MORACLE_TRY(
        GroupedQueryDescription attention,
        describe_grouped_query(checkpoint, self_attn, spec.decoder,
                               spec.heads[static_cast<size_t>(layer)], {.gate_name = "g_proj"}));
    MORACLE_CHECK(describe_head_norms(checkpoint, self_attn, spec.decoder, attention));
    return describe_shared_moe_layer(checkpoint, spec.decoder, spec.moe, layer,
                                     std::move(attention));
  };
  return describe_decoder(checkpoint, spec.decoder, describe_layer);
}

constexpr GgufKey kOwnGgufKeys[] = {
    {"attention.head_count", "num_attention_heads_per_layer"},
    {"feed_forward_length", "intermediate_size"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
    {"expert_weights_scale", "moe_routed_scaling_factor", false},
};
constexpr auto kGgufKeys = joined(kOwnGgufKeys, kWindowedGgufKeys);
constexpr GgufTensor kGgufTensors[] = {
    {"blk.{L}.attn_gate", "model.layers.{L}.self_attn.g_proj"},
    {"blk.{L}.exp_probs_b.bias", "model.layers.{L}.mlp.experts.e_score_correction_bias"},
    {"blk.{L}.ffn_gate_shexp", "model.layers.{L}.mlp.shared_expert.gate_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.mlp.shared_expert.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.mlp.shared_expert.down_proj"},
};
// Heads by layer, and the kind of gate: it has as many rows as heads, or as columns.
void set_heads(GgufModel& model) {
  nlohmann::json& heads = model.config["num_attention_heads_per_layer"];
  nlohmann::json first = heads.is_array() && !heads.empty() ? heads[0] : heads;
  if (!heads.is_array()) model.config.erase("num_attention_heads_per_layer");
  const TensorView* const gate = model.stored.find("blk.0.attn_gate.weight");
  const bool per_head = gate != nullptr && !gate->shape.empty() && first == gate->shape[0];
  model.config["gating"] = per_head ? "per-head" : "per-element";
  model.config["num_attention_heads"] = std::move(first);
}
Status finish_gguf(GgufModel& model) {
  MORACLE_CHECK(require_gating(model, GgufGating::kSigmoid));
  MORACLE_CHECK(require_renormalized(model));
  set_heads(model);
  MORACLE_CHECK(set_layer_types(model, 4, GgufUnwindowed::kFirst));
  MORACLE_CHECK(set_leading_dense(model));
  return set_windowed_rotary(model);
}
Status write_gguf(GgufDraft& draft) {
  MORACLE_CHECK(put_sigmoid_gating(draft));
  put_gguf(draft, "expert_weights_norm", true);
  if (!draft.config.has({"num_attention_heads_per_layer"})) {
    MORACLE_TRY(const int64_t heads, draft.config.integer({"num_attention_heads"}, 1, 1 << 16));
    put_gguf(draft, "attention.head_count", heads);
  }
  MORACLE_CHECK(put_leading_dense(draft));
  return put_windowed(draft);
}
constexpr GgufConvention kGguf[] = {{.architecture = "laguna",
                                     .keys = kGgufKeys,
                                     .tensors = kGgufTensors,
                                     .usual_heads = false,
                                     .constants = R"({"moe_routed_scaling_factor": 1.0})",
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace laguna

constinit const Family kLagunaFamily = {.architecture = "LagunaForCausalLM",
                                        .models = "Laguna",
                                        .describe = laguna::describe,
                                        .experts = {.defaults = laguna::kDefaults,
                                                    .score = Score::kSigmoid,
                                                    .renormalize = true,
                                                    .renormalize_keys = {},
                                                    .scaling_factor = laguna::kScale,
                                                    .correction_bias = laguna::kBias,
                                                    .gguf = laguna::kGguf}};

}  // namespace moracle
