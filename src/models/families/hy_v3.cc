// Hy3: GQA with norms on q and k. Dense first layers, sigmoid routing with a correction bias, a
// shared expert. The layers for multi-token prediction are not run.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/shared_moe.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace hy_v3 {
namespace {

// The defaults of transformers' HYV3Config.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 120832, "hidden_size": 4096, "intermediate_size": 13312, "num_hidden_layers": 80,
  "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "attention_bias": false, "mlp_bias": false, "num_experts": 192, "num_experts_per_tok": 8,
  "num_shared_experts": 1, "moe_intermediate_size": 1536, "router_scaling_factor": 2.826,
  "first_k_dense_replace": 1, "rope_theta": 11158840.0
})";

constexpr const char* kScale[] = {"router_scaling_factor"};
constexpr std::string_view kBias = "model.layers.{L}.mlp.expert_bias";

Result<SharedMoeSpec> read_moe(const Config& config, int64_t num_layers) {
  MORACLE_TRY(SharedMoeSpec moe, read_shared_moe(config));
  MORACLE_CHECK(read_mlp_layer_types(config, num_layers, moe));
  MORACLE_CHECK(check_dense_layers(config, moe));
  MORACLE_CHECK(require_keys(config, {"num_shared_experts", "router_scaling_factor"}));
  moe.router = "router.gate";
  moe.shared = "shared_mlp";
  moe.bias_name = kBias;
  return moe;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config));
  MORACLE_TRY(const GroupedQuerySpec heads, read_grouped_query(config, decoder));
  MORACLE_TRY(const SharedMoeSpec moe, read_moe(config, checkpoint.num_layers()));
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"attention_bias"}));
  MORACLE_CHECK(require_flag(config, "mlp_bias", false));
  // Published files have these keys. transformers computes the model as if each was true.
  for (const char* key :
       {"qk_norm", "route_norm", "moe_router_use_sigmoid", "moe_router_enable_expert_bias"}) {
    MORACLE_CHECK(require_flag(config, key, true));
  }
  return describe_decoder(checkpoint, decoder, [&](int64_t layer) -> Result<LayerDescription> {
    const std::string self_attn = layer_prefix(checkpoint, layer) + "self_attn.";
    MORACLE_TRY(GroupedQueryDescription attention,
                describe_grouped_query(checkpoint, self_attn, decoder, heads, {biased, biased}));
    MORACLE_CHECK(describe_head_norms(checkpoint, self_attn, decoder, attention));
    return describe_shared_moe_layer(checkpoint, decoder, moe, layer, std::move(attention));
  });
}

constexpr GgufKey kGgufKeys[] = {
    {"feed_forward_length", "intermediate_size", false},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_feed_forward_length", "num_shared_experts",
     false},  // until finish_gguf divides
    {"expert_weights_scale", "router_scaling_factor", false},
};
constexpr GgufTensor kGgufTensors[] = {
    {"blk.{L}.ffn_gate_inp", "model.layers.{L}.mlp.router.gate"},
    {"blk.{L}.exp_probs_b", "model.layers.{L}.mlp.expert_bias"},
    {"blk.{L}.ffn_gate_shexp", "model.layers.{L}.mlp.shared_mlp.gate_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.mlp.shared_mlp.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.mlp.shared_mlp.down_proj"},
};
Status finish_gguf(GgufModel& model) {
  MORACLE_CHECK(require_gating(model, GgufGating::kSigmoid));
  MORACLE_CHECK(require_renormalized(model));
  MORACLE_TRY(const int64_t size, gguf_integer(model, "expert_feed_forward_length"));
  const char* const key = "expert_shared_feed_forward_length";
  MORACLE_TRY(const auto shared, gguf_optional(model, key));
  if (shared && *shared % size != 0)
    return model.metadata.wrong({gguf_key(model, key).c_str()}, str("a multiple of ", size),
                                str("it is ", *shared));
  model.config["num_shared_experts"] = shared.value_or(size) / size;
  set_layers_without_experts(model);
  set_attention_bias(model);
  return {};
}
Status write_gguf(GgufDraft& draft) {
  MORACLE_CHECK(put_sigmoid_gating(draft));
  put_gguf(draft, "expert_weights_norm", true);
  MORACLE_TRY(const int64_t size, draft.config.integer({"moe_intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(const int64_t shared, draft.config.integer({"num_shared_experts"}, 1, 1 << 10));
  put_gguf(draft, "expert_shared_feed_forward_length", shared * size);
  return {};
}
constexpr GgufConvention kGguf[] = {{.architecture = "hy_v3",
                                     .keys = kGgufKeys,
                                     .tensors = kGgufTensors,
                                     .constants = R"({"router_scaling_factor": 1.0})",
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace hy_v3

constinit const Family kHyV3Family = {.architecture = "HYV3ForCausalLM",
                                      .models = "Hy3",
                                      .notes = "without multi-token prediction",
                                      .describe = hy_v3::describe,
                                      .experts = {.defaults = hy_v3::kDefaults,
                                                  .score = Score::kSigmoid,
                                                  .renormalize = true,
                                                  .renormalize_keys = {},
                                                  .scaling_factor = hy_v3::kScale,
                                                  .correction_bias = hy_v3::kBias,
                                                  .gguf = hy_v3::kGguf}};

}  // namespace moracle
