// DeepSeek-V3 (and R1): MLA, dense first layers, sigmoid routing by groups with a correction bias,
// shared experts. The layers for multi-token prediction (num_nextn_predict_layers, stored behind
// the last layer) are not run.
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/attention/rotary.h"
#include "models/families/decoder_parts.h"
#include "models/families/family.h"

namespace moracle {
namespace deepseek_v3 {
namespace {

struct Sizes {
  LatentSpec attention;
  bool attention_bias = false;
  int64_t dense_layers = 0, sparse_step = 1;
  int64_t dense_intermediate = 0, shared_intermediate = 0;
};

Result<LatentSpec> read_latent(const Config& config) {
  LatentSpec spec;
  constexpr int64_t kMost = 1 << 16;
  MORACLE_TRY(spec.num_heads, config.integer({"num_attention_heads"}, 1, kMost));
  MORACLE_TRY(spec.q_rank, config.integer_or(0, {"q_lora_rank"}, 1, kMost));
  MORACLE_TRY(spec.kv_rank, config.integer({"kv_lora_rank"}, 1, kMost));
  MORACLE_TRY(spec.nope_dim, config.integer({"qk_nope_head_dim"}, 1, kMost));
  MORACLE_TRY(spec.rope_dim, config.integer({"qk_rope_head_dim"}, 2, kMost));
  MORACLE_TRY(spec.value_dim, config.integer({"v_head_dim"}, 1, kMost));
  if (spec.rope_dim % 2 != 0)
    return config.wrong({"qk_rope_head_dim"}, "an even number", str("it is ", spec.rope_dim));
  MORACLE_TRY(RotaryAndScale read, read_rotary(config, spec.rope_dim, 10'000));
  spec.rotary = std::move(read.rotary);
  MORACLE_TRY(spec.rotary.interleaved, config.boolean_or(true, {"rope_interleave"}));
  spec.scale =
      static_cast<float>(read.score_scale / std::sqrt(static_cast<double>(spec.head_dim())));
  spec.norm_epsilon = 1e-6f;  // for the latent vectors; rms_norm_eps applies to the other norms
  return spec;
}

Result<Sizes> read_sizes(const Config& config) {
  Sizes sizes;
  MORACLE_TRY(sizes.attention, read_latent(config));
  MORACLE_TRY(sizes.attention_bias, config.boolean_or(false, {"attention_bias"}));
  MORACLE_TRY(sizes.dense_layers, config.integer({"first_k_dense_replace"}, 0));
  MORACLE_TRY(sizes.sparse_step, config.integer_or(1, {"moe_layer_freq"}, 1));
  MORACLE_TRY(sizes.dense_intermediate, config.integer({"intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(const int64_t num_shared, config.integer_or(0, {"n_shared_experts"}, 0, 1 << 10));
  MORACLE_TRY(const int64_t one, config.integer({"moe_intermediate_size"}, 1, 1 << 20));
  sizes.shared_intermediate = num_shared * one;
  // DeepSeek-V2 chose its experts by other rules.
  MORACLE_TRY(const std::string method, config.text_or("noaux_tc", {"topk_method"}));
  if (method != "noaux_tc")
    return config.unsupported({"topk_method"}, "noaux_tc", "it is " + method);
  // Require these keys: transformers' defaults are the numbers of one model.
  for (const char* key : {"n_group", "topk_group", "routed_scaling_factor"}) {
    if (!config.has({key})) return config.wrong({key}, "a number", "it is missing");
  }
  return sizes;
}

Result<LatentDescription> describe_attention(const Checkpoint& checkpoint,
                                             const std::string& prefix, const DecoderSpec& spec,
                                             const Sizes& sizes) {
  const LatentSpec& a = sizes.attention;
  const int64_t q_rows = a.num_heads * a.head_dim();
  // The biases of config.json apply to layers that read or write the hidden state.
  const auto outer = sizes.attention_bias ? describe_biased_linear : describe_linear;
  std::vector<float> q_norm;
  std::optional<DescribedMatrix> q_a;
  if (a.q_rank > 0) {
    MORACLE_TRY(q_a, outer(checkpoint, {prefix + "q_a_proj"}, {a.q_rank}, spec.hidden_size));
    MORACLE_TRY(q_norm, checkpoint.vector(prefix + "q_a_layernorm.weight", a.q_rank));
  }
  MORACLE_TRY(DescribedMatrix q,
              describe_linear(checkpoint, {prefix + (q_a ? "q_b_proj" : "q_proj")}, {q_rows},
                              q_a ? a.q_rank : spec.hidden_size));
  MORACLE_TRY(DescribedMatrix kv_a, outer(checkpoint, {prefix + "kv_a_proj_with_mqa"},
                                          {a.kv_rank + a.rope_dim}, spec.hidden_size));
  MORACLE_TRY(auto kv_norm, checkpoint.vector(prefix + "kv_a_layernorm.weight", a.kv_rank));
  MORACLE_TRY(DescribedMatrix kv_b,
              describe_linear(checkpoint, {prefix + "kv_b_proj"},
                              {a.num_heads * (a.nope_dim + a.value_dim)}, a.kv_rank));
  MORACLE_TRY(DescribedMatrix o, outer(checkpoint, {prefix + "o_proj"}, {spec.hidden_size},
                                       a.num_heads * a.value_dim));
  return LatentDescription{a,
                           std::move(q_norm),
                           std::move(kv_norm),
                           std::move(q_a),
                           std::move(q),
                           std::move(kv_a),
                           std::move(kv_b),
                           std::move(o)};
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                        const Sizes& sizes, int64_t layer) {
  const std::string prefix = str("model.layers.", layer, "."), mlp = prefix + "mlp";
  MORACLE_TRY(auto input_norm,
              checkpoint.vector(prefix + "input_layernorm.weight", spec.hidden_size));
  MORACLE_TRY(auto post_norm,
              checkpoint.vector(prefix + "post_attention_layernorm.weight", spec.hidden_size));
  MORACLE_TRY(LatentDescription attention,
              describe_attention(checkpoint, prefix + "self_attn.", spec, sizes));
  if (layer < sizes.dense_layers || layer % sizes.sparse_step != 0) {
    MORACLE_TRY(DescribedWeights weights,
                describe_dense_mlp(checkpoint, mlp, spec, sizes.dense_intermediate));
    return LayerDescription{
        std::move(input_norm), std::move(post_norm), std::move(attention), {}, std::move(weights)};
  }
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  experts.spec.routing.correction_bias = true;  // a file without it is incomplete
  MORACLE_TRY(RouterDescription router, describe_router(checkpoint, mlp + ".gate", experts.spec));
  LayerDescription described{std::move(input_norm), std::move(post_norm), std::move(attention),
                             std::move(router), std::move(experts)};
  if (sizes.shared_intermediate > 0) {
    MORACLE_TRY(described.shared, describe_shared_expert(checkpoint, mlp + ".shared_experts", "",
                                                         spec, sizes.shared_intermediate));
  }
  return described;
}

// Claims the layers stored behind the last, so that their tensors count as known.
Result<std::optional<IgnoredPart>> ignore_next_tokens(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const int64_t count, config.integer_or(0, {"num_nextn_predict_layers"}, 0, 1000));
  IgnoredPart part{"multi-token prediction, not run", 0, 0};
  for (int64_t layer = checkpoint.num_layers(); layer < checkpoint.num_layers() + count; ++layer) {
    const std::string prefix = str("model.layers.", layer, ".");
    for (const std::string& name : checkpoint.unclaimed()) {
      if (!name.starts_with(prefix)) continue;
      MORACLE_TRY(const TensorView tensor, checkpoint.tensor(name));
      part.num_tensors += 1;
      part.bytes += static_cast<int64_t>(tensor.num_bytes());
    }
  }
  return part.num_tensors > 0 ? std::optional(std::move(part)) : std::nullopt;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  // The routing depends on model_type.
  MORACLE_TRY(const std::string type, config.text({"model_type"}));
  if (type != "deepseek_v3") return config.wrong({"model_type"}, "deepseek_v3", "it is " + type);
  MORACLE_TRY(const DecoderSpec spec, read_decoder_spec(config));
  MORACLE_TRY(const Sizes sizes, read_sizes(config));
  MORACLE_TRY(Description description, describe_decoder(checkpoint, spec, [&](int64_t layer) {
                return describe_layer(checkpoint, spec, sizes, layer);
              }));
  MORACLE_TRY(description.ignored, ignore_next_tokens(checkpoint));
  return description;
}

}  // namespace
}  // namespace deepseek_v3

constinit const Family kDeepseekV3Family = {
    .architecture = "DeepseekV3ForCausalLM",
    .describe = deepseek_v3::describe,
    .experts = {.default_score = Score::kSigmoid, .renormalize = true}};

}  // namespace moracle
