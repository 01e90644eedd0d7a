// DeepSeek-V3.2 and GLM-5: MLA as DeepSeek-V3 has it, with an indexer that chooses index_topk
// earlier tokens for each token. Up to a context of index_topk it chooses all of them, so the
// indexer is not run and longer contexts are refused. Layers for multi-token prediction are not run
// either.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/latent_decoder.h"
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

struct IndexerSpec {
  int64_t top_k = 0, num_heads = 0, head_dim = 0;
};

Result<IndexerSpec> read_indexer(const Config& config) {
  IndexerSpec spec;
  MORACLE_TRY(spec.top_k, config.integer({"index_topk"}, 1));
  MORACLE_TRY(spec.num_heads, config.integer({"index_n_heads"}, 1, 1 << 12));
  MORACLE_TRY(spec.head_dim, config.integer({"index_head_dim"}, 1, 1 << 14));
  return spec;
}

// GLM-5 may share one layer's choice with the next ones, which then have no indexer.
bool has_indexer(const Checkpoint& checkpoint, const std::string& prefix) {
  const auto& all = checkpoint.state().tensors.all();
  const auto at = all.lower_bound(prefix);
  return at != all.end() && at->first.starts_with(prefix);
}

// Checks the indexer of a layer without claiming its tensors: they are not read.
Status check_indexer(const Checkpoint& checkpoint, const std::string& prefix,
                     const DecoderSpec& decoder, const LatentSpec& attention,
                     const IndexerSpec& spec) {
  struct IndexerLinear {
    const char* name;
    int64_t rows, cols;
  };
  for (const IndexerLinear& linear :
       {IndexerLinear{"wq_b", spec.num_heads * spec.head_dim, attention.q_rank},
        IndexerLinear{"wk", spec.head_dim, decoder.hidden_size},
        IndexerLinear{"weights_proj", spec.num_heads, decoder.hidden_size}}) {
    MORACLE_TRY(const DescribedMatrix matrix,
                describe_linear(checkpoint, {prefix + linear.name}, {linear.rows}, linear.cols));
    if (!matrix.shape().bias) continue;
    return checkpoint.state().tensors.wrong(str(prefix, linear.name, ".bias"), "not to be there",
                                            "the architecture has no such bias");
  }
  for (const char* name : {"k_norm.weight", "k_norm.bias"})
    MORACLE_CHECK(checkpoint.vector(prefix + name, spec.head_dim));
  return {};
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(DecoderSpec decoder, read_decoder_spec(config));
  MORACLE_TRY(const LatentSpec attention, read_latent(config));
  // transformers rotates neighbouring columns, whatever the key says.
  if (!attention.rotary.interleaved)
    return config.unsupported({"rope_interleave"}, "true", "it is false");
  MORACLE_TRY(const IndexerSpec indexer, read_indexer(config));
  decoder.max_context = std::min(decoder.max_context, indexer.top_k);
  const int64_t num_layers = checkpoint.num_layers();
  MORACLE_TRY(SharedMoeSpec moe, read_shared_moe(config));
  MORACLE_CHECK(read_mlp_layer_types(config, num_layers, moe));
  MORACLE_CHECK(require_keys(config, {"n_group", "topk_group", "routed_scaling_factor"}));
  MORACLE_TRY(Description description,
              describe_latent_decoder(checkpoint, decoder, attention, moe));
  const Checkpoint unclaimed = checkpoint.unclaimed_copy();
  std::vector<std::string> prefixes;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const std::string prefix = layer_prefix(checkpoint, layer) + "self_attn.indexer.";
    if (layer > 0 && !has_indexer(checkpoint, prefix)) continue;
    MORACLE_CHECK(check_indexer(unclaimed, prefix, decoder, attention, indexer));
    prefixes.push_back(prefix);
  }
  MORACLE_CHECK(ignore_tensors(checkpoint,
                               str("indexer, not needed up to ", indexer.top_k, " tokens"),
                               prefixes, description));
  return description;
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
constexpr GgufConvention gguf_of(std::string_view architecture) {
  return {.architecture = architecture,
          .keys = kGgufKeys,
          .tensors = kGgufTensors,
          .usual_heads = false,
          .constants = kSharedMoeGgufConstants,
          .finish = finish_gguf,
          .write = write_latent_gguf};
}
constexpr GgufConvention kGguf[] = {gguf_of("deepseek32")};
constexpr GgufConvention kGlmGguf[] = {gguf_of("glm-dsa")};

}  // namespace
}  // namespace deepseek_v32

constinit const Family kDeepseekV32Family = {
    .architecture = "DeepseekV32ForCausalLM",
    .models = "DeepSeek-V3.2",
    .notes = "contexts up to `index_topk`, longer ones are refused; without multi-token prediction",
    .describe = deepseek_v32::describe,
    .experts = {.defaults = deepseek_v32::kDefaults,
                .score = Score::kSigmoid,
                .gguf = deepseek_v32::kGguf}};
constinit const Family kGlmMoeDsaFamily = {
    .architecture = "GlmMoeDsaForCausalLM",
    .models = "GLM-5",
    .notes = "contexts up to `index_topk`, longer ones are refused; without multi-token prediction",
    .describe = deepseek_v32::describe,
    .experts = {.defaults = deepseek_v32::kGlmDefaults,
                .score = Score::kSigmoid,
                .gguf = deepseek_v32::kGlmGguf}};

}  // namespace moracle
