// A.X-K1: DeepSeek-V3's layers, with a norm on the sum of the experts and the shared expert.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/latent/latent_decoder.h"

namespace moracle {
namespace axk1 {
namespace {

// The defaults of transformers' AXK1Config.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 163840, "hidden_size": 7168, "intermediate_size": 18432,
  "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 64,
  "n_shared_experts": 1, "n_routed_experts": 192, "routed_scaling_factor": 2.5,
  "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
  "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8,
  "norm_topk_prob": true, "hidden_act": "silu", "max_position_embeddings": 32768,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "rope_interleave": true,
  "attention_bias": false, "first_k_dense_replace": 1, "rope_theta": 10000.0
})";

Result<SharedMoeSpec> read_moe(const Config& config, int64_t num_layers) {
  MORACLE_TRY(SharedMoeSpec moe, read_shared_moe(config));
  MORACLE_CHECK(read_mlp_layer_types(config, num_layers, moe));
  MORACLE_CHECK(check_dense_layers(config, moe));
  MORACLE_CHECK(require_score(config, "sigmoid"));
  // transformers ignores the method: the two best experts of a group rank it.
  MORACLE_TRY(const std::string method, config.text_or("", {"topk_method"}));
  if (method == "greedy" || method == "group_limited_greedy")
    return config.unsupported({"topk_method"}, "noaux_tc", "it is " + method);
  MORACLE_CHECK(
      require_keys(config, {"n_group", "topk_group", "routed_scaling_factor", "n_shared_experts"}));
  return moe;
}

// Published files have no correction bias, files of transformers have one in each layer.
bool has_bias(const Checkpoint& checkpoint, const SharedMoeSpec& moe) {
  for (int64_t layer = 0; layer < checkpoint.num_layers(); ++layer) {
    const std::string gate = layer_prefix(checkpoint, layer) + "mlp.gate.";
    if (!moe.is_dense(layer) && checkpoint.has_tensor(gate + "e_score_correction_bias"))
      return true;
  }
  return false;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config));
  MORACLE_TRY(const LatentSpec attention, read_latent(config));
  MORACLE_CHECK(require_keys(config, {"q_lora_rank"}));
  MORACLE_TRY(SharedMoeSpec moe, read_moe(config, checkpoint.num_layers()));
  moe.correction_bias = has_bias(checkpoint, moe);
  MORACLE_TRY(Description description,
              describe_latent_decoder(checkpoint, decoder, attention, moe));
  std::vector<std::string> unused;  // published files have this norm in dense layers, too
  for (int64_t l = 0; l < checkpoint.num_layers(); ++l) {
    LayerDescription& layer = description.layers[static_cast<size_t>(l)];
    const std::string norm = layer_prefix(checkpoint, l) + "post_mlp_layernorm";
    if (moe.is_dense(l)) {
      unused.push_back(norm + ".");
      continue;
    }
    MORACLE_TRY(layer.mlp_output.norm,
                describe_norm(checkpoint, norm, decoder.hidden_size, decoder));
    if (moe.correction_bias) continue;
    // Without one, groups rank by their two best experts all the same.
    layer.mlp->spec.routing.correction_bias = true;
    layer.router->correction_bias.assign(static_cast<size_t>(layer.mlp->spec.num_experts), 0.0f);
  }
  MORACLE_CHECK(ignore_tensors(checkpoint, "norms of dense layers, not used", unused, description));
  return description;
}

}  // namespace
}  // namespace axk1

constinit const Family kAxk1Family = {
    .architecture = "AXK1ForCausalLM",
    .models = "A.X-K1",
    .describe = axk1::describe,
    .experts = {.defaults = axk1::kDefaults, .score = Score::kSigmoid}};

}  // namespace moracle
