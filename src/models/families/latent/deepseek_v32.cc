// DeepSeek-V3.2 and GLM-5: MLA as DeepSeek-V3 has it, with sparse attention. An indexer chooses
// index_topk positions for each token; layers of GLM-5.2 share what an earlier one chose. The
// publishers' code also rotates index queries and keys by a Hadamard matrix, which changes no
// product, and rounds them to FP8. transformers does neither, and neither does this library.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/latent/sparse_indexer.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace deepseek_v32 {
namespace {

// The defaults of transformers' DeepseekV32Config.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
  "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
  "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 2.5,
  "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
  "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8,
  "norm_topk_prob": true, "hidden_act": "silu", "max_position_embeddings": 163840,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false, "index_topk": 2048,
  "index_head_dim": 128, "index_n_heads": 64, "first_k_dense_replace": 3, "rope_theta": 10000.0
})";

// The defaults of transformers' GlmMoeDsaConfig.
constexpr std::string_view kGlmDefaults = R"({
  "vocab_size": 154880, "hidden_size": 6144, "intermediate_size": 12288,
  "moe_intermediate_size": 2048, "num_hidden_layers": 78, "num_attention_heads": 64,
  "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 2.5,
  "kv_lora_rank": 512, "q_lora_rank": 2048, "qk_rope_head_dim": 64, "v_head_dim": 256,
  "qk_nope_head_dim": 192, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8,
  "norm_topk_prob": true, "hidden_act": "silu", "max_position_embeddings": 202752,
  "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "attention_bias": false, "index_topk": 2048,
  "index_head_dim": 128, "index_n_heads": 32, "first_k_dense_replace": 3, "rope_theta": 10000.0
})";

// What a family decides about its indexers. Config keys that contradict it are refused.
struct Indexers {
  bool interleaved;  // RoPE of index heads
  bool may_share;    // transformers reads indexer_types
};

Result<IndexerSpec> read_indexer(const Config& config, const LatentSpec& attention,
                                 const Indexers& family) {
  IndexerSpec spec;
  MORACLE_TRY(spec.top_k, config.integer({"index_topk"}, 1));
  MORACLE_TRY(spec.num_heads, config.integer({"index_n_heads"}, 1, 1 << 12));
  MORACLE_TRY(spec.head_dim, config.integer({"index_head_dim"}, attention.rope_dim, 1 << 14));
  // transformers ignores the key.
  const char* const key = "indexer_rope_interleave";
  MORACLE_TRY(spec.interleaved, config.boolean_or(family.interleaved, {key}));
  if (spec.interleaved == family.interleaved) return spec;
  return config.unsupported({key}, family.interleaved ? "true" : "false",
                            family.interleaved ? "it is false" : "it is true");
}

Result<Description> describe_sparse(const Checkpoint& checkpoint, const Indexers& family) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config));
  MORACLE_TRY(LatentSpec attention, read_latent(config));
  // transformers rotates neighbouring columns, whatever the key says.
  if (!attention.rotary.interleaved)
    return config.unsupported({"rope_interleave"}, "true", "it is false");
  // Index queries come from the vector of low rank.
  if (attention.q_rank == 0)
    return config.wrong({"q_lora_rank"}, "a whole number above 0", "it is missing");
  MORACLE_TRY(attention.indexer, read_indexer(config, attention, family));
  const int64_t num_layers = checkpoint.num_layers();
  std::vector<bool> shared(static_cast<size_t>(num_layers));
  if (family.may_share && !checkpoint.describes_next_tokens()) {
    MORACLE_TRY(shared, read_shared_selections(config, num_layers));
  }
  MORACLE_TRY(SharedMoeSpec moe, read_shared_moe(config));
  MORACLE_CHECK(read_mlp_layer_types(config, num_layers, moe));
  MORACLE_CHECK(require_keys(config, {"n_group", "topk_group", "routed_scaling_factor"}));
  MORACLE_TRY(Description description,
              describe_latent_decoder(checkpoint, decoder, attention, moe));
  std::vector<std::string> unused;
  // A layer for multi-token prediction has an indexer of its own.
  const int64_t first = checkpoint.describes_next_tokens() ? num_layers : 0;
  for (size_t layer = 0; layer < description.layers.size(); ++layer) {
    const std::string prefix =
        layer_prefix(checkpoint, first + static_cast<int64_t>(layer)) + "self_attn.indexer.";
    auto& latent = std::get<LatentDescription>(description.layers[layer].attention);
    latent.spec.indexer.shared = shared[layer];
    if (latent.spec.indexer.shared) {
      unused.push_back(prefix);
      continue;
    }
    MORACLE_TRY(latent.indexer,
                describe_indexer(checkpoint, prefix, decoder.hidden_size, attention));
  }
  MORACLE_CHECK(ignore_tensors(checkpoint, "indexer of a layer that shares a selection, not run",
                               unused, description));
  return description;
}
Result<Description> describe(const Checkpoint& checkpoint) {
  return describe_sparse(checkpoint, {.interleaved = false, .may_share = false});
}
Result<Description> describe_glm(const Checkpoint& checkpoint) {
  return describe_sparse(checkpoint, {.interleaved = true, .may_share = true});
}

constexpr GgufKey kOwnGgufKeys[] = {
    {"attention.indexer.head_count", "index_n_heads"},
    {"attention.indexer.key_length", "index_head_dim"},
    {"attention.indexer.top_k", "index_topk"},
};
constexpr auto kGgufKeys = joined(kSharedMoeGgufKeys, kLatentGgufOwnKeys, kOwnGgufKeys);
constexpr GgufTensor kOwnGgufTensors[] = {
    {"blk.{L}.indexer.attn_q_b", "model.layers.{L}.self_attn.indexer.wq_b"},
    {"blk.{L}.indexer.attn_k", "model.layers.{L}.self_attn.indexer.wk"},
    {"blk.{L}.indexer.proj", "model.layers.{L}.self_attn.indexer.weights_proj"},
    {"blk.{L}.indexer.k_norm", "model.layers.{L}.self_attn.indexer.k_norm"},
};
constexpr auto kGgufTensors = joined(kSharedMoeGgufTensors, kLatentGgufOwnTensors, kOwnGgufTensors);
Status finish_gguf(GgufModel& model) {
  MORACLE_CHECK(require_gating(model, GgufGating::kSigmoid));
  return finish_deepseek(model);
}
// GGUF has no key for shared selections: a layer that shares one has no indexer.
Status finish_glm_gguf(GgufModel& model) {
  const auto num_layers = model.config["num_hidden_layers"].get<int64_t>();
  nlohmann::json types = nlohmann::json::array();
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const std::string key = str("model.layers.", layer, ".self_attn.indexer.wk.weight");
    types.push_back(layer == 0 || model.tensors.contains(key) ? "full" : "shared");
  }
  model.config["indexer_types"] = std::move(types);
  return finish_gguf(model);
}
constexpr GgufConvention gguf_of(std::string_view architecture,
                                 Status (*finish)(GgufModel& model)) {
  return {.architecture = architecture,
          .keys = kGgufKeys,
          .tensors = kGgufTensors,
          .usual_heads = false,
          .constants = kSharedMoeGgufConstants,
          .finish = finish,
          .write = write_latent_gguf};
}
constexpr GgufConvention kGguf[] = {gguf_of("deepseek32", finish_gguf)};
constexpr GgufConvention kGlmGguf[] = {gguf_of("glm-dsa", finish_glm_gguf)};

}  // namespace
}  // namespace deepseek_v32

constinit const Family kDeepseekV32Family = {
    .architecture = "DeepseekV32ForCausalLM",
    .models = "DeepSeek-V3.2",
    .notes =
        "the indexer without the Hadamard rotation and FP8 rounding of the publisher's code, "
        "as in transformers; multi-token prediction drafts",
    .describe = deepseek_v32::describe,
    .experts = {.defaults = deepseek_v32::kDefaults,
                .score = Score::kSigmoid,
                .gguf = deepseek_v32::kGguf}};
constinit const Family kGlmMoeDsaFamily = {
    .architecture = "GlmMoeDsaForCausalLM",
    .models = "GLM-5, GLM-5.1, GLM-5.2",
    .notes =
        "the indexer without the Hadamard rotation and FP8 rounding of the publisher's code, "
        "as in transformers; multi-token prediction drafts",
    .describe = deepseek_v32::describe_glm,
    .experts = {.defaults = deepseek_v32::kGlmDefaults,
                .score = Score::kSigmoid,
                .gguf = deepseek_v32::kGlmGguf}};

}  // namespace moracle
