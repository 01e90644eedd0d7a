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

namespace moracle {
namespace deepseek_v32 {
namespace {

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
  struct Part {
    const char* name;
    int64_t rows, cols;
  };
  for (const Part& part : {Part{"wq_b", spec.num_heads * spec.head_dim, attention.q_rank},
                           Part{"wk", spec.head_dim, decoder.hidden_size},
                           Part{"weights_proj", spec.num_heads, decoder.hidden_size}}) {
    MORACLE_TRY(const DescribedMatrix matrix,
                describe_linear(checkpoint, {prefix + part.name}, {part.rows}, part.cols));
    if (!matrix.shape().bias) continue;
    return checkpoint.state().tensors.wrong(str(prefix, part.name, ".bias"), "not to be there",
                                            "the architecture has no such bias");
  }
  for (const char* name : {"k_norm.weight", "k_norm.bias"})
    MORACLE_CHECK(checkpoint.vector(prefix + name, spec.head_dim));
  return {};
}

Result<Description> describe_sparse(const Checkpoint& checkpoint, const DecoderDefaults& defaults) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(DecoderSpec decoder, read_decoder_spec(config, defaults));
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
  MORACLE_CHECK(ignore_part(checkpoint, str("indexer, not needed up to ", indexer.top_k, " tokens"),
                            prefixes, description));
  return description;
}

Result<Description> describe_deepseek(const Checkpoint& checkpoint) {
  return describe_sparse(checkpoint, {});
}
Result<Description> describe_glm(const Checkpoint& checkpoint) {
  return describe_sparse(checkpoint, {.norm_epsilon = 1e-5});
}

}  // namespace
}  // namespace deepseek_v32

constinit const Family kDeepseekV32Family = {
    .architecture = "DeepseekV32ForCausalLM",
    .models = "DeepSeek-V3.2",
    .notes = "contexts up to `index_topk`, longer ones are refused; without multi-token prediction",
    .describe = deepseek_v32::describe_deepseek,
    .experts = {.score = Score::kSigmoid, .renormalize = true}};
constinit const Family kGlmMoeDsaFamily = {
    .architecture = "GlmMoeDsaForCausalLM",
    .models = "GLM-5",
    .notes = "contexts up to `index_topk`, longer ones are refused; without multi-token prediction",
    .describe = deepseek_v32::describe_glm,
    .experts = {.score = Score::kSigmoid, .renormalize = true}};

}  // namespace moracle
