// GLM-5.3-Flash: Kimi Delta Attention, in some layers MLA without RoPE whose indexer chooses pools
// of positions, and hyper-connections. Dense first layers, then DeepSeek-V3's experts. The numbers
// are those of transformers' Glm5NextForConditionalGeneration.
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/latent/hyper_connections.h"
#include "models/families/latent/sparse_indexer.h"
#include "models/families/recurrent/kimi_delta.h"

namespace moracle {
namespace glm5_next {
namespace {

// The defaults of transformers' Glm5NextTextConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 154880, "hidden_size": 4096, "intermediate_size": 12288,
  "moe_intermediate_size": 2048, "num_hidden_layers": 45, "num_attention_heads": 64,
  "num_key_value_heads": 64, "n_shared_experts": 1, "n_routed_experts": 288,
  "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 0,
  "v_head_dim": 256, "qk_nope_head_dim": 256, "n_group": 1, "topk_group": 1,
  "num_experts_per_tok": 8, "norm_topk_prob": true, "hidden_act": "silu",
  "max_position_embeddings": 1048576, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "attention_bias": false, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32,
  "index_kpool": 16, "index_kpool_always_select_tail": true, "swiglu_limit": 10.0,
  "linear_head_dim": 128, "linear_num_heads": 64, "linear_conv_kernel_dim": 4,
  "linear_lower_bound": -5.0, "hc_mult": 4, "hc_eps": 1e-06, "hc_sinkhorn_iters": 20,
  "first_k_dense_replace": 3
})";

// The name by which this file reads a tensor. transformers has names of its own for some of the
// published ones, and a matrix whose name is that of a module.
std::string name_of(std::string_view stored) {
  constexpr std::pair<std::string_view, std::string_view> kParts[] = {
      {".self_attn.forget_gate.", ".self_attn."},
      {".attn_hc.", ".hc_attn_"},
      {".ffn_hc.", ".hc_ffn_"},
  };
  std::string name(stored);
  for (const auto& [from, to] : kParts) {
    const size_t at = name.find(from);
    if (at != name.npos) name.replace(at, from.size(), to);
  }
  return name.ends_with(".index_kpool_compress_gate") ? name + ".weight" : name;
}

struct Spec {
  DecoderSpec decoder;
  LatentSpec latent;
  KimiDeltaSpec delta;
  std::vector<bool> is_delta, shared;  // by layer; shared: see IndexerSpec
  SharedMoeSpec moe;
  float limit = 0;  // of SwiGLU, in every MLP
  bool biased = false;
};

// The layers with KDA: layer_types, or all but every fourth one. transformers has several names for
// the others.
Result<std::vector<bool>> read_layers(const Config& config, const std::optional<Config>& linear,
                                      int64_t num_layers) {
  MORACLE_TRY(const std::vector<std::string> types, config.texts({"layer_types"}));
  std::vector<bool> is_delta;
  for (int64_t layer = 0; types.empty() && layer < num_layers; ++layer)
    is_delta.push_back(layer % 4 != 3);
  if (types.empty() && linear && linear->has({"kda_layers"}))
    return config.unsupported({"layer_types"}, "the layers of kda_layers, which are not read",
                              "it is missing");
  for (const std::string& type : types) {
    is_delta.push_back(type == "linear_attention");
    if (is_delta.back() || type == "indexed_attention" || type == "full_attention" ||
        type == "deepseek_sparse_attention")
      continue;
    return config.unsupported({"layer_types"}, "linear_attention and indexed_attention",
                              "it has " + type);
  }
  if (static_cast<int64_t>(is_delta.size()) == num_layers) return is_delta;
  return config.wrong({"layer_types"}, str("one for each of ", num_layers, " layers"),
                      str("it has ", is_delta.size()));
}

// Keys inside linear_attn_config count before those beside it.
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
  const bool inside = linear && linear->value().contains("gate_lower_bound");
  const Config& from = inside ? *linear : config;
  const char* const key = inside ? "gate_lower_bound" : "linear_lower_bound";
  bool bounded = from.has({key});
  if (!bounded && linear) {
    MORACLE_TRY(bounded, linear->boolean_or(true, {"safe_gate"}));
  }
  if (!bounded) return spec;
  MORACLE_TRY(const double bound, from.number_or(-5, {key}));
  if (!(bound < 0 && bound >= -1e6))
    return from.wrong({key}, "a number below 0", str("it is ", bound));
  spec.lower_bound = static_cast<float>(bound);
  return spec;
}

Result<LatentSpec> read_latent(const Config& config, const DecoderSpec& decoder) {
  MORACLE_TRY(LatentSpec spec, read_latent_sizes(config, false));
  MORACLE_CHECK(require_keys(config, {"q_lora_rank"}));
  MORACLE_TRY(const int64_t kv_heads, config.integer_or(spec.num_heads, {"num_key_value_heads"}));
  if (kv_heads != spec.num_heads) {
    return config.wrong({"num_key_value_heads"}, str(spec.num_heads, ", as many as heads"),
                        str("it is ", kv_heads));
  }
  spec.norm_epsilon = decoder.norm_epsilon;
  spec.scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim()));
  IndexerSpec& indexer = spec.indexer;
  MORACLE_TRY(indexer.pool, config.integer({"index_kpool"}, 1, 1 << 14));
  MORACLE_TRY(indexer.top_k, config.integer({"index_topk"}, 1));
  MORACLE_TRY(indexer.num_heads, config.integer({"index_n_heads"}, 1, 1 << 12));
  MORACLE_TRY(indexer.head_dim, config.integer({"index_head_dim"}, 1, 1 << 14));
  if (indexer.top_k % indexer.pool == 0) return spec;
  return config.wrong({"index_topk"}, str("a multiple of index_kpool, ", indexer.pool),
                      str("it is ", indexer.top_k));
}

// A layer may share the selection of the layer before it alone, as in transformers.
Result<std::vector<bool>> read_shared(const Config& config, const std::vector<bool>& is_delta) {
  MORACLE_TRY(const std::vector<bool> shared,
              read_shared_selections(config, static_cast<int64_t>(is_delta.size())));
  for (size_t layer = 1; layer < shared.size(); ++layer) {
    if (!shared[layer] || is_delta[layer] || (!is_delta[layer - 1] && !shared[layer - 1])) continue;
    return config.unsupported({"indexer_types"},
                              "full in the layer before one that shares its selection",
                              str("layer ", layer - 1, " has no indexer"));
  }
  return shared;
}

// Published files have these keys, which transformers does not read.
Status check_published_keys(const Config& config) {
  for (const char* const key :
       {"mhc", "mla_use_nope", "index_kpool_compress", "index_kpool_always_select_tail"})
    MORACLE_CHECK(require_flag(config, key, true));
  MORACLE_CHECK(require_score(config, "sigmoid"));
  MORACLE_TRY(const std::string method, config.text_or("noaux_tc", {"topk_method"}));
  if (method == "noaux_tc") return {};
  return config.unsupported({"topk_method"}, "noaux_tc", "it is " + method);
}

Result<Spec> read(const Config& config, int64_t num_layers) {
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  if (spec.decoder.activation != Activation::kSilu)
    return config.unsupported({"hidden_act"}, "silu, for Kimi Delta Attention",
                              "it is another one");
  MORACLE_CHECK(read_hyper_connections(config, spec.decoder));
  MORACLE_TRY(const std::optional<Config> linear, config.object({"linear_attn_config"}));
  MORACLE_TRY(spec.is_delta, read_layers(config, linear, num_layers));
  MORACLE_TRY(spec.delta, read_delta(config, linear, spec.decoder));
  MORACLE_TRY(spec.latent, read_latent(config, spec.decoder));
  MORACLE_TRY(spec.shared, read_shared(config, spec.is_delta));
  MORACLE_TRY(spec.moe, read_shared_moe(config));
  for (int64_t layer = 0; layer < num_layers; ++layer) spec.moe.dense.push_back(layer < 3);
  MORACLE_CHECK(read_mlp_layer_types(config, num_layers, spec.moe));
  MORACLE_CHECK(check_dense_layers(config, spec.moe));
  if (spec.moe.sparse_step != 1)
    return config.unsupported({"moe_layer_freq"}, "1", str("it is ", spec.moe.sparse_step));
  MORACLE_CHECK(require_keys(config, {"n_group", "topk_group", "routed_scaling_factor"}));
  MORACLE_TRY(const double limit, config.number({"swiglu_limit"}));
  if (!(limit > 0 && limit <= 1e30))
    return config.wrong({"swiglu_limit"}, "a number above 0", str("it is ", limit));
  spec.limit = static_cast<float>(limit);
  MORACLE_TRY(spec.biased, config.boolean_or(false, {"attention_bias"}));
  MORACLE_CHECK(check_published_keys(config));
  return spec;
}

Result<IndexerDescription> describe_pools(const Checkpoint& checkpoint, const std::string& prefix,
                                          const Spec& spec) {
  const int64_t hidden = spec.decoder.hidden_size, dim = spec.latent.indexer.head_dim;
  MORACLE_TRY(IndexerDescription indexer,
              describe_indexer(checkpoint, prefix, hidden, spec.latent));
  MORACLE_TRY(indexer.pool_gates,
              describe_linear(checkpoint, {prefix + "index_kpool_compress_gate"}, {dim}, hidden));
  MORACLE_TRY(indexer.pool_bias, checkpoint.floats(prefix + "index_kpool_compress_ape",
                                                   {spec.latent.indexer.pool, dim}));
  return indexer;
}

Result<AttentionDescription> describe_attention(const Checkpoint& checkpoint, const Spec& spec,
                                                int64_t layer) {
  const std::string prefix = layer_prefix(checkpoint, layer) + "self_attn.";
  if (spec.is_delta[static_cast<size_t>(layer)]) {
    MORACLE_TRY(KimiDeltaDescription delta,
                describe_kimi_delta(checkpoint, prefix, spec.decoder, spec.delta,
                                    {spec.delta.num_heads}, "o_proj"));
    return AttentionDescription(std::move(delta));
  }
  MORACLE_TRY(LatentDescription latent,
              describe_latent(checkpoint, prefix, spec.decoder, spec.latent, spec.biased));
  latent.spec.indexer.shared = spec.shared[static_cast<size_t>(layer)];
  if (!latent.spec.indexer.shared) {
    MORACLE_TRY(latent.indexer, describe_pools(checkpoint, prefix + "indexer.", spec));
  }
  return AttentionDescription(std::move(latent));
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& spec,
                                        int64_t number) {
  MORACLE_TRY(AttentionDescription attention, describe_attention(checkpoint, spec, number));
  MORACLE_TRY(LayerDescription layer, describe_shared_moe_layer(checkpoint, spec.decoder, spec.moe,
                                                                number, std::move(attention)));
  layer.mlp->spec.activation.limit = spec.limit;
  if (layer.shared) layer.shared->mlp.spec.activation.limit = spec.limit;
  const std::string prefix = layer_prefix(checkpoint, number);
  MORACLE_TRY(layer.attention_hyper,
              describe_hyper_connection(checkpoint, prefix + "hc_attn_", spec.decoder));
  MORACLE_TRY(layer.mlp_hyper,
              describe_hyper_connection(checkpoint, prefix + "hc_ffn_", spec.decoder));
  return layer;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  return describe_decoder(checkpoint, spec.decoder,
                          [&](int64_t layer) { return describe_layer(checkpoint, spec, layer); });
}

}  // namespace
}  // namespace glm5_next

constinit const Family kGlm5NextFamily = {
    .architecture = "Glm5NextForConditionalGeneration",
    .also = "Glm5NextForCausalLM",
    .multimodal = "Glm5NextForConditionalGeneration",
    .models = "GLM-5.3-Flash",
    .notes = "text only; on CPUs and NVIDIA GPUs; without multi-token prediction",
    .describe = glm5_next::describe,
    .experts = {.defaults = glm5_next::kDefaults,
                .score = Score::kSigmoid,
                .tensor_name = glm5_next::name_of}};

}  // namespace moracle
