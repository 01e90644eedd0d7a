// Qwen3.8-Flash-Next: gated DeltaNet, and attention whose indexer chooses pools of positions by
// averaged keys; gated residual streams, and embeddings of n-grams. Experts as Qwen3-Next has them.
// The numbers are those of transformers' Qwen4ExpForCausalLM.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/experts/matrix_share.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/recurrent/hybrid_moe.h"
#include "models/families/recurrent/ngram_hashes.h"

namespace moracle {
namespace qwen4_exp {
namespace {

// The defaults of transformers' Qwen4ExpTextConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
  "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 32768,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false, "head_dim": 256,
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
  "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
  "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10, "num_experts": 512,
  "norm_topk_prob": true, "rope_theta": 10000.0,
  "full_attention_interval": 4, "hc_count": 4, "hc_lowrank": 320, "ple_conv_kernel_size": 4,
  "ngram_size": 3, "heads_per_ngram": 8, "ngram_vocab_size_base": 20000000,
  "make_ngram_vocab_size_divisible_by": 128, "seed": 1234, "split_ngram_parts": 512
})";

struct Spec {
  HybridMoe layers;
  IndexerSpec indexer;
  std::vector<int64_t> ngram_layers;  // ascending
  NgramSpec ngrams;                   // without the numbers of rows
  int64_t shards = 1;                 // of a table
};

Result<IndexerSpec> read_indexer(const Config& config, const GroupedQuerySpec& heads) {
  IndexerSpec spec;
  const auto rotated = static_cast<int64_t>(2 * heads.rotary.frequencies.size());
  MORACLE_TRY(spec.num_heads, config.integer({"indexer_n_heads"}, 1, 1 << 12));
  MORACLE_TRY(const int64_t kv_heads, config.integer({"indexer_kv_heads"}, 1, 1 << 12));
  if (kv_heads != 1) return config.unsupported({"indexer_kv_heads"}, "1", str("it is ", kv_heads));
  MORACLE_TRY(spec.head_dim, config.integer({"indexer_head_dim"}, rotated, 1 << 14));
  MORACLE_TRY(spec.pool, config.integer({"indexer_compress_ratio"}, 1, 1 << 14));
  MORACLE_TRY(spec.top_k, config.integer({"indexer_budget"}, 1));
  spec.averaged = true;
  spec.norm_epsilon = heads.norm_epsilon;
  if (spec.top_k % spec.pool == 0) return spec;
  return config.wrong({"indexer_budget"}, str("a multiple of indexer_compress_ratio, ", spec.pool),
                      str("it is ", spec.top_k));
}

// A text ends with the first of these tokens.
Result<int32_t> read_boundary(const Config& config, int64_t vocab_size) {
  MORACLE_TRY(const std::vector<int64_t> ids, config.integers({"eos_token_id"}));
  if (ids.empty())
    return config.wrong({"eos_token_id"}, "a token that ends a text, for n-grams", "it is missing");
  if (ids[0] < 0 || ids[0] >= vocab_size)
    return config.wrong({"eos_token_id"}, str("a token from 0 to ", vocab_size - 1),
                        str("it is ", ids[0]));
  return static_cast<int32_t>(ids[0]);
}

Status read_ngrams(const Config& config, const DecoderSpec& decoder, Spec& spec) {
  MORACLE_TRY(spec.ngram_layers, config.integers({"ple_layer_ids"}));
  std::sort(spec.ngram_layers.begin(), spec.ngram_layers.end());
  spec.ngram_layers.erase(std::unique(spec.ngram_layers.begin(), spec.ngram_layers.end()),
                          spec.ngram_layers.end());
  const auto layers = static_cast<int64_t>(spec.layers.is_delta.size());
  for (int64_t& layer : spec.ngram_layers) {
    if (layer < 1 || layer > layers || !spec.layers.is_delta[static_cast<size_t>(layer - 1)]) {
      return config.wrong({"ple_layer_ids"}, str("layers of linear_attention, from 1 to ", layers),
                          str("it has ", layer));
    }
    --layer;  // they count from 1
  }
  if (spec.ngram_layers.empty()) return {};
  NgramSpec& ngrams = spec.ngrams;
  ngrams.hidden_size = decoder.hidden_size;
  ngrams.num_streams = decoder.num_streams;
  ngrams.norm_epsilon = decoder.norm_epsilon;
  MORACLE_TRY(ngrams.size, config.integer({"ngram_size"}, 2, 16));
  MORACLE_TRY(ngrams.heads, config.integer({"heads_per_ngram"}, 1, 256));
  MORACLE_TRY(ngrams.kernel, config.integer({"ple_conv_kernel_size"}, 2, 16));
  MORACLE_TRY(const int64_t columns,
              config.integer_or(decoder.hidden_size, {"ple_embed_dim"}, 1, 1 << 20));
  if (columns % ngrams.num_heads() != 0) {
    return config.wrong({"ple_embed_dim"}, str("a multiple of ", ngrams.num_heads(), " heads"),
                        str("it is ", columns));
  }
  ngrams.head_dim = columns / ngrams.num_heads();
  MORACLE_TRY(spec.shards, config.integer({"split_ngram_parts"}, 1, 1 << 20));
  MORACLE_TRY(ngrams.boundary, read_boundary(config, decoder.vocab_size));
  return {};
}

Result<Spec> read(const Config& config, int64_t num_layers) {
  Spec spec;
  MORACLE_TRY(spec.layers, read_hybrid_moe(config, num_layers, "indexed_attention"));
  DecoderSpec& decoder = spec.layers.decoder;
  MORACLE_TRY(decoder.num_streams, config.integer({"hc_count"}, 2, 16));
  MORACLE_TRY(decoder.residual_rank, config.integer({"hc_lowrank"}, 1, 1 << 16));
  MORACLE_TRY(const std::string gate, config.text_or("silu", {"output_gate_type"}));
  if (gate != "silu" && gate != "sigmoid")
    return config.unsupported({"output_gate_type"}, "silu and sigmoid", "it is " + gate);
  spec.layers.delta.sigmoid_gate = gate == "sigmoid";
  MORACLE_TRY(spec.layers.heads.indexer, read_indexer(config, spec.layers.heads));
  MORACLE_CHECK(read_ngrams(config, decoder, spec));
  return spec;
}

Result<IndexerDescription> describe_indexer(const Checkpoint& checkpoint, const std::string& prefix,
                                            const Spec& spec) {
  const IndexerSpec& indexer = spec.layers.heads.indexer;
  const int64_t queries = indexer.num_heads * indexer.head_dim, rows = queries + indexer.head_dim;
  const auto share = [&](int64_t first, int64_t last) -> Result<DescribedMatrix> {
    MORACLE_TRY(DescribedMatrix both, describe_linear(checkpoint, {prefix + "index_qk_proj"},
                                                      {rows}, spec.layers.decoder.hidden_size));
    return MatrixShare::rows(std::move(both), {{first, last}});
  };
  MORACLE_TRY(DescribedMatrix q, share(0, queries));
  MORACLE_TRY(DescribedMatrix k, share(queries, rows));
  const auto norm = [&](const char* name) {
    return describe_norm(checkpoint, prefix + name, indexer.head_dim, spec.layers.decoder);
  };
  MORACLE_TRY(auto q_norm, norm("q_layernorm"));
  MORACLE_TRY(auto k_norm, norm("k_layernorm"));
  return IndexerDescription{.q_norm = std::move(q_norm),
                            .k_norm = std::move(k_norm),
                            .q = std::move(q),
                            .k = std::move(k)};
}

Result<GatedResidualDescription> describe_residual(const Checkpoint& checkpoint,
                                                   const std::string& prefix,
                                                   const DecoderSpec& decoder, bool injects) {
  const int64_t streams = decoder.num_streams * decoder.hidden_size, rank = decoder.residual_rank;
  MORACLE_TRY(auto norm, describe_norm(checkpoint, prefix + "hc_norm", streams, decoder));
  MORACLE_TRY(DescribedMatrix down,
              describe_linear(checkpoint, {prefix + "input_mix_weight_down"}, {rank}, streams));
  MORACLE_TRY(DescribedMatrix up,
              describe_linear(checkpoint, {prefix + "input_mix_weight_up"}, {streams}, rank));
  GatedResidualDescription described{std::move(norm), std::move(down), std::move(up)};
  if (injects) {
    MORACLE_TRY(described.inject, describe_linear(checkpoint, {prefix + "block_inject_weight"},
                                                  {decoder.num_streams}, streams));
  }
  return described;
}

// `index`: of the layer among those with n-grams.
Result<NgramDescription> describe_ngrams(const Checkpoint& checkpoint, const std::string& prefix,
                                         const Spec& spec, int64_t index) {
  const DecoderSpec& decoder = spec.layers.decoder;
  NgramSpec ngrams = spec.ngrams;
  const std::string embedding = prefix + "ple_embedding.";
  MORACLE_TRY(NgramHashes hashes, describe_ngram_hashes(checkpoint, embedding, ngrams, index));
  ngrams.num_rows = hashes.num_rows;
  std::vector<std::string> shards;
  std::vector<int64_t> rows;
  const std::string whole = embedding + "ngram_embedding";
  const int64_t count = checkpoint.has_tensor(whole + ".weight") ? 1 : spec.shards;
  if (ngrams.num_rows % count != 0) {
    return checkpoint.state().config.wrong({"split_ngram_parts"},
                                           str("a divisor of ", ngrams.num_rows, " rows"),
                                           str("it is ", count));
  }
  for (int64_t shard = 0; shard < count; ++shard) {
    shards.push_back(count == 1 && checkpoint.has_tensor(whole + ".weight")
                         ? whole
                         : str(whole, ".shard_", shard));
    rows.push_back(ngrams.num_rows / count);
  }
  MORACLE_TRY(DescribedMatrix table, describe_linear(checkpoint, shards, rows, ngrams.head_dim));
  const Tensors& tensors = checkpoint.state().tensors;
  if (table.shape().bias)
    return tensors.wrong(shards[0] + ".bias", "not to be there", "a table has no bias");
  if (table.scheme().weight.quantized())
    return tensors.wrong(shards[0] + ".weight", "bf16, f16 or f32", "it is quantized");
  const int64_t columns = ngrams.num_heads() * ngrams.head_dim, streams = ngrams.streams_size();
  MORACLE_TRY(DescribedMatrix key,
              describe_linear(checkpoint, {prefix + "key_proj"}, {streams}, columns));
  MORACLE_TRY(DescribedMatrix value,
              describe_linear(checkpoint, {prefix + "value_proj"}, {decoder.hidden_size}, columns));
  const auto norm = [&](const char* name) {
    return describe_norm(checkpoint, prefix + name, streams, decoder);
  };
  MORACLE_TRY(auto key_norm, norm("norm_key"));
  MORACLE_TRY(auto query_norm, norm("norm_query"));
  MORACLE_TRY(auto value_norm, norm("norm_conv"));
  MORACLE_TRY(auto taps, checkpoint.floats(prefix + "conv1d.weight", {streams, 1, ngrams.kernel}));
  return NgramDescription{ngrams,
                          std::move(hashes.multipliers),
                          std::move(hashes.sizes),
                          std::move(hashes.offsets),
                          std::move(key_norm),
                          std::move(query_norm),
                          std::move(value_norm),
                          std::move(taps),
                          std::move(table),
                          std::move(key),
                          std::move(value)};
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& spec,
                                        int64_t number) {
  const DecoderSpec& decoder = spec.layers.decoder;
  const GatedDeltaSpec& delta = spec.layers.delta;
  const std::string prefix = layer_prefix(checkpoint, number), mlp = prefix + "mlp";
  const DeltaModules modules{{"in_proj_qkv", "in_proj_z"},
                             {"in_proj_b", "in_proj_a"},
                             {delta.mixed(), delta.values()},
                             {delta.num_value_heads, delta.num_value_heads}};
  MORACLE_TRY(AttentionDescription attention,
              describe_hybrid_attention(checkpoint, spec.layers, number, modules));
  if (auto* const heads = std::get_if<GroupedQueryDescription>(&attention)) {
    MORACLE_TRY(heads->indexer, describe_indexer(checkpoint, prefix + "self_attn.indexer.", spec));
  }
  MORACLE_TRY(const int64_t shared_size,
              checkpoint.state().config.integer({"shared_expert_intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(number));
  MORACLE_TRY(RouterDescription router, describe_router(checkpoint, mlp + ".gate", experts.spec));
  MORACLE_TRY(auto shared,
              describe_shared_expert(checkpoint, mlp + ".shared_expert",
                                     mlp + ".shared_expert_gate", decoder, shared_size));
  LayerDescription layer{
      {}, {}, std::move(attention), std::move(router), std::move(experts), std::move(shared)};
  MORACLE_TRY(layer.attention_residual,
              describe_residual(checkpoint, prefix + "attn_hyper_connection.", decoder, true));
  MORACLE_TRY(layer.mlp_residual,
              describe_residual(checkpoint, prefix + "mlp_hyper_connection.", decoder, true));
  const auto& with = spec.ngram_layers;
  const auto at = std::find(with.begin(), with.end(), number);
  if (at == with.end()) return layer;
  MORACLE_TRY(layer.ngrams, describe_ngrams(checkpoint, prefix + "ple.", spec, at - with.begin()));
  return layer;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  const DecoderSpec& decoder = spec.layers.decoder;
  MORACLE_TRY(Description description,
              describe_decoder(
                  checkpoint, decoder,
                  [&](int64_t layer) { return describe_layer(checkpoint, spec, layer); }, nullptr));
  MORACLE_TRY(description.final_residual,
              describe_residual(checkpoint, checkpoint.state().root + "hyper_connection_mixer.",
                                decoder, false));
  return description;
}

}  // namespace
}  // namespace qwen4_exp

constinit const Family kQwen4ExpFamily = {
    .architecture = "Qwen4ExpForCausalLM",
    .multimodal = "Qwen4ExpForConditionalGeneration",
    .models = "Qwen3.8-Flash-Next",
    .notes =
        "text only; on CPUs and NVIDIA GPUs, with the tables of n-grams in memory; without "
        "multi-token "
        "prediction",
    .describe = qwen4_exp::describe,
    .experts = {.defaults = qwen4_exp::kDefaults, .score = Score::kSoftmax}};

}  // namespace moracle
