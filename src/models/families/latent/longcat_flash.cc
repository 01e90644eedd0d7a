// LongCat-Flash: two layers of MLA and a dense MLP for each layer of the files. The first one also
// has experts, which join the residual stream behind the second one. Some experts return their
// input. The layers for multi-token prediction are not run.
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/latent/latent_decoder.h"

namespace moracle {
namespace longcat_flash {
namespace {

// The defaults of transformers' LongcatFlashConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 131072, "hidden_size": 6144, "num_layers": 28, "num_attention_heads": 64,
  "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
  "tie_word_embeddings": false, "attention_bias": false, "ffn_hidden_size": 12288,
  "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "head_dim": 64, "v_head_dim": 128, "moe_topk": 12, "n_routed_experts": 512,
  "zero_expert_num": 256, "expert_ffn_hidden_size": 2048, "routed_scaling_factor": 6.0,
  "rope_theta": 10000000.0
})";

constexpr const char *kLayersKeys[] = {"num_layers"}, *kTopKKeysOf[] = {"moe_topk"},
                     *kSizeKeys[] = {"expert_ffn_hidden_size"},
                     *kIdentityKeys[] = {"zero_expert_num"};
constexpr std::string_view kBias = "model.layers.{L}.mlp.router.e_score_correction_bias";

struct Spec {
  DecoderSpec decoder;
  LatentSpec attention;
  double kv_factor = 1;  // of the latent keys and values
  int64_t dense_intermediate = 0, num_identity = 0;
  bool biased = false;
};

Status check_head_dim(const Config& config, const char* key, int64_t expected) {
  MORACLE_TRY(const int64_t dim, config.integer_or(expected, {key}, 1));
  if (dim == expected) return {};
  return config.wrong({key}, str(expected, ", as the other sizes of heads say"),
                      str("it is ", dim));
}

Result<Spec> read(const Config& config) {
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  MORACLE_TRY(spec.attention, read_latent(config));
  LatentSpec& attention = spec.attention;
  MORACLE_CHECK(require_keys(config, {"q_lora_rank", "routed_scaling_factor"}));
  MORACLE_CHECK(check_head_dim(config, "head_dim", attention.rope_dim));
  MORACLE_CHECK(check_head_dim(config, "qk_head_dim", attention.head_dim()));
  // Published files have these keys, which transformers does not read.
  MORACLE_CHECK(require_flag(config, "mla_scale_q_lora", true));
  MORACLE_CHECK(require_flag(config, "mla_scale_kv_lora", true));
  MORACLE_CHECK(require_flag(config, "rope_interleave", true));
  MORACLE_CHECK(require_flag(config, "router_bias", false));
  MORACLE_CHECK(require_flag(config, "norm_topk_prob", false));
  MORACLE_TRY(const std::string method, config.text_or("MLA", {"attention_method"}));
  if (method != "MLA") return config.unsupported({"attention_method"}, "MLA", "it is " + method);
  MORACLE_TRY(const std::string type, config.text_or("identity", {"zero_expert_type"}));
  if (type != "identity")
    return config.unsupported({"zero_expert_type"}, "identity", "it is " + type);
  const auto hidden = static_cast<double>(spec.decoder.hidden_size);
  // The factor of queries is one of scores, too.
  attention.scale *= static_cast<float>(std::sqrt(hidden / static_cast<double>(attention.q_rank)));
  spec.kv_factor = std::sqrt(hidden / static_cast<double>(attention.kv_rank));
  MORACLE_TRY(spec.dense_intermediate, config.integer({"ffn_hidden_size"}, 1, 1 << 24));
  MORACLE_TRY(spec.num_identity, config.integer_or(0, {"zero_expert_num"}, 0, 1 << 20));
  MORACLE_TRY(spec.biased, config.boolean_or(false, {"attention_bias"}));
  return spec;
}

// One of the two layers, with its dense MLP.
Result<LayerDescription> describe_half(const Checkpoint& checkpoint, const Spec& spec,
                                       const std::string& layer, int half) {
  const auto norm = [&](const char* name) {
    return describe_norm(checkpoint, str(layer, name, ".", half), spec.decoder.hidden_size,
                         spec.decoder);
  };
  MORACLE_TRY(auto input_norm, norm("input_layernorm"));
  MORACLE_TRY(auto post_norm, norm("post_attention_layernorm"));
  MORACLE_TRY(LatentDescription attention,
              describe_latent(checkpoint, str(layer, "self_attn.", half, "."), spec.decoder,
                              spec.attention, spec.biased));
  for (float& weight : attention.kv_norm) weight = static_cast<float>(weight * spec.kv_factor);
  MORACLE_TRY(DescribedWeights mlp, describe_dense_mlp(checkpoint, str(layer, "mlps.", half),
                                                       spec.decoder, spec.dense_intermediate));
  return LayerDescription{
      std::move(input_norm), std::move(post_norm), std::move(attention), {}, std::move(mlp)};
}

// The experts, beside the dense MLP of the first layer.
Status add_experts(const Checkpoint& checkpoint, const Spec& spec, int64_t layer,
                   LayerDescription& first) {
  first.shared = SharedExpertDescription{std::move(*first.mlp), {}};
  MORACLE_TRY(first.mlp, checkpoint.moe_layer(layer));
  first.mlp->spec.routing.correction_bias = true;  // a file without it is incomplete
  LayerSpec routed = first.mlp->spec;
  routed.num_experts += spec.num_identity;
  MORACLE_TRY(first.router,
              describe_router(checkpoint, layer_prefix(checkpoint, layer) + "mlp.router.classifier",
                              routed, of_layer(checkpoint.state(), kBias, layer)));
  first.router->num_identity = spec.num_identity;
  first.shortcut = Shortcut::kBegins;
  return {};
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config));
  std::vector<LayerDescription> layers;
  const auto describe_layer = [&](int64_t layer) -> Result<LayerDescription> {
    const std::string prefix = layer_prefix(checkpoint, layer);
    MORACLE_TRY(LayerDescription first, describe_half(checkpoint, spec, prefix, 0));
    MORACLE_CHECK(add_experts(checkpoint, spec, layer, first));
    layers.push_back(std::move(first));
    MORACLE_TRY(LayerDescription second, describe_half(checkpoint, spec, prefix, 1));
    second.shortcut = Shortcut::kEnds;
    return second;
  };
  MORACLE_TRY(Description description, describe_decoder(checkpoint, spec.decoder, describe_layer));
  for (size_t i = description.layers.size(); i > 0; --i)
    layers.insert(layers.begin() + static_cast<std::ptrdiff_t>(i),
                  std::move(description.layers[i - 1]));
  description.layers = std::move(layers);
  std::vector<std::string> unused;
  for (int64_t layer = 0; layer < checkpoint.num_layers(); ++layer) {
    const LayerDescription& first = description.layers[static_cast<size_t>(2 * layer)];
    for (int64_t e = 0; e < spec.num_identity; ++e)
      unused.push_back(str(first.mlp->spec.name, ".", first.mlp->spec.num_experts + e, "."));
  }
  MORACLE_CHECK(
      ignore_tensors(checkpoint, "tensors of identity experts, not used", unused, description));
  return description;
}

}  // namespace
}  // namespace longcat_flash

constinit const Family kLongcatFlashFamily = {
    .architecture = "LongcatFlashForCausalLM",
    .models = "LongCat-Flash",
    .notes = "without multi-token prediction",
    .describe = longcat_flash::describe,
    .experts = {.defaults = longcat_flash::kDefaults,
                .num_layers = longcat_flash::kLayersKeys,
                .layers_of_each = 2,
                .num_identity = longcat_flash::kIdentityKeys,
                .top_k = longcat_flash::kTopKKeysOf,
                .intermediate_size = longcat_flash::kSizeKeys,
                .score = Score::kSoftmax,
                .renormalize_keys = {},
                .correction_bias = longcat_flash::kBias}};

}  // namespace moracle
