// Hunyuan-A13B: GQA with norms on q and k after RoPE. Softmax routing, renormalized, and a shared
// expert in every layer. moe_topk may name the experts per token of each layer.
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/gguf/gguf_drafts.h"

namespace moracle {
namespace hunyuan_v1_moe {
namespace {

// The defaults of transformers' HunYuanMoEV1Config.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 290943, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "attention_bias": false, "num_experts": 1,
  "moe_topk": 1, "rope_theta": 10000.0
})";

constexpr const char* kNumExperts[] = {"num_experts"};
constexpr const char* kTopK[] = {"num_experts_per_tok", "moe_topk"};
constexpr const char* kSize[] = {"intermediate_size"};

// Published files repeat these numbers for every layer; transformers reads none of them.
Status check_repeated(const Config& config, const char* key, int64_t only) {
  MORACLE_TRY(const std::vector<int64_t> values, config.integers({key}));
  for (const int64_t value : values) {
    if (value != only)
      return config.unsupported({key}, str(only, " in every layer"), str("it has ", value));
  }
  return {};
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                        const GroupedQuerySpec& heads, int64_t layer, bool biased,
                                        int64_t intermediate) {
  const std::string prefix = layer_prefix(checkpoint, layer), mlp = prefix + "mlp.";
  const std::string self_attn = prefix + "self_attn.";
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, self_attn, spec, heads, {biased, biased}));
  MORACLE_TRY(attention.q_norm,
              checkpoint.vector(self_attn + "query_layernorm.weight", heads.head_dim));
  MORACLE_TRY(attention.k_norm,
              checkpoint.vector(self_attn + "key_layernorm.weight", heads.head_dim));
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  MORACLE_TRY(RouterDescription router, describe_router(checkpoint, mlp + "gate.wg", experts.spec));
  MORACLE_TRY(SharedExpertDescription shared,
              describe_shared_expert(checkpoint, mlp + "shared_mlp", "", spec, intermediate));
  return describe_decoder_layer(checkpoint, spec, layer, std::move(attention), std::move(experts),
                                std::move(router), std::move(shared));
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec spec, read_decoder_spec(config));
  MORACLE_TRY(GroupedQuerySpec heads, read_grouped_query(config, spec, true, {.ntk_alpha = true}));
  heads.qk_norm = QkNorm::kAfterRope;
  MORACLE_TRY(const bool qk_norm, config.boolean_or(true, {"use_qk_norm"}));
  if (!qk_norm) return config.unsupported({"use_qk_norm"}, "true", "it is false");
  MORACLE_TRY(const bool shares_keys, config.boolean_or(false, {"use_cla"}));
  if (shares_keys) return config.unsupported({"use_cla"}, "false", "it is true");
  MORACLE_TRY(const int64_t intermediate, config.integer({"intermediate_size"}, 1, 1 << 24));
  MORACLE_CHECK(check_repeated(config, "moe_intermediate_size", intermediate));
  MORACLE_CHECK(check_repeated(config, "num_shared_expert", 1));
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"attention_bias"}));
  return describe_decoder(checkpoint, spec, [&](int64_t layer) {
    return describe_layer(checkpoint, spec, heads, layer, biased, intermediate);
  });
}

constexpr GgufKey kGgufKeys[] = {
    {"expert_shared_feed_forward_length", "intermediate_size"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_count", "num_shared_expert"},
};
constexpr GgufTensor kGgufTensors[] = {
    {"blk.{L}.attn_q_norm", "model.layers.{L}.self_attn.query_layernorm"},
    {"blk.{L}.attn_k_norm", "model.layers.{L}.self_attn.key_layernorm"},
    {"blk.{L}.ffn_gate_inp", "model.layers.{L}.mlp.gate.wg"},
    {"blk.{L}.ffn_gate_shexp", "model.layers.{L}.mlp.shared_mlp.gate_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.mlp.shared_mlp.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.mlp.shared_mlp.down_proj"},
};
// rope.freq_base has alpha in it.
Status write_gguf(GgufDraft& draft) {
  if (!draft.config.has({"num_shared_expert"})) put_gguf(draft, "expert_shared_count", 1);
  if (!draft.rope || !draft.rope->has({"alpha"})) return {};
  MORACLE_TRY(const int64_t head_dim, head_dim_of(draft));
  MORACLE_TRY(const double alpha, draft.rope->number({"alpha"}));
  const Config& holder = draft.rope->has({"rope_theta"}) ? *draft.rope : draft.config;
  MORACLE_TRY(const double theta, holder.number({"rope_theta"}));
  const auto dim = static_cast<double>(head_dim);
  put_gguf(draft, "rope.freq_base", theta * std::pow(alpha, dim / (dim - 2)));
  return {};
}
constexpr GgufConvention kGguf[] = {{.architecture = "hunyuan-moe",
                                     .keys = kGgufKeys,
                                     .tensors = kGgufTensors,
                                     .write = write_gguf}};

}  // namespace
}  // namespace hunyuan_v1_moe

constinit const Family kHunyuanV1MoeFamily = {
    .architecture = "HunYuanMoEV1ForCausalLM",
    .models = "Hunyuan-A13B",
    .describe = hunyuan_v1_moe::describe,
    .experts = {.defaults = hunyuan_v1_moe::kDefaults,
                .num_experts = hunyuan_v1_moe::kNumExperts,
                .top_k = hunyuan_v1_moe::kTopK,
                .intermediate_size = hunyuan_v1_moe::kSize,
                .score = Score::kSoftmax,
                .renormalize = true,
                .renormalize_keys = {},
                .gguf = hunyuan_v1_moe::kGguf}};

}  // namespace moracle
