// MiniMax-M3: GQA with norms on q and k and RoPE on a part of each head. In most layers an indexer
// chooses blocks of positions, for each head of keys by itself. Dense first layers, sigmoid routing
// with a correction bias, a shared expert; all activations are clamped. Layers for multi-token
// prediction and the vision part are not run.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/shared_moe.h"

namespace moracle {
namespace minimax_m3 {
namespace {

// The defaults of transformers' MiniMaxM3VLTextConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 200064, "hidden_size": 6144, "intermediate_size": 3072, "num_hidden_layers": 60,
  "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
  "max_position_embeddings": 524288, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
  "num_experts_per_tok": 4, "num_local_experts": 128, "routed_scaling_factor": 2.0,
  "dense_intermediate_size": 12288, "shared_intermediate_size": 3072, "swiglu_alpha": 1.702,
  "swiglu_limit": 7.0, "index_n_heads": 4, "index_head_dim": 128, "index_block_size": 128,
  "index_topk_blocks": 16, "index_local_blocks": 1, "rope_theta": 5000000.0, "hidden_act": "silu",
  "first_k_dense_replace": 0
})";

constexpr const char* kExpertSize[] = {"intermediate_size"};
constexpr std::string_view kBias = "model.layers.{L}.block_sparse_moe.e_score_correction_bias";

struct Spec {
  DecoderSpec decoder;
  GroupedQuerySpec heads;  // without its indexer
  IndexerSpec indexer;
  ActivationSpec activation;
  std::vector<bool> dense, sparse;  // by layer: an MLP in place of experts; selected blocks
  int64_t dense_intermediate = 0, shared_intermediate = 0;
  bool own_names = false;  // those of transformers' modules, in files of its text model
};

// One number for each layer, 0 or 1.
Result<std::vector<bool>> read_flags(const Config& config, const char* key, int64_t num_layers) {
  MORACLE_TRY(const std::vector<int64_t> numbers, config.integers({key}));
  if (numbers.empty()) return std::vector<bool>();
  if (static_cast<int64_t>(numbers.size()) == num_layers)
    return std::vector<bool>(numbers.begin(), numbers.end());
  return config.wrong({key}, str("one number for each of ", num_layers, " layers"),
                      str("it has ", numbers.size()));
}

// The layers that `types` calls `wanted`; the others are `other`.
Result<std::vector<bool>> read_types(const Config& config, const char* key, int64_t num_layers,
                                     const std::string& wanted, const std::string& other) {
  MORACLE_TRY(const std::vector<std::string> types, config.texts({key}));
  std::vector<bool> flags;
  for (const std::string& type : types) {
    if (type != wanted && type != other)
      return config.unsupported({key}, str(wanted, " and ", other), "it has " + type);
    flags.push_back(type == wanted);
  }
  if (flags.empty() || static_cast<int64_t>(flags.size()) == num_layers) return flags;
  return config.wrong({key}, str("one for each of ", num_layers, " layers"),
                      str("it has ", flags.size()));
}

// transformers' configuration class does not read these keys of published files, and computes the
// model as if each had its published value.
Status check_published(const Config& sparse, const std::vector<bool>& layers) {
  MORACLE_CHECK(require_flag(sparse, "use_sparse_attention", true));
  MORACLE_TRY(const std::string score, sparse.text_or("max", {"sparse_score_type"}));
  if (score != "max") return sparse.unsupported({"sparse_score_type"}, "max", "it is " + score);
  MORACLE_TRY(const int64_t first, sparse.integer_or(0, {"sparse_init_block"}));
  if (first != 0) return sparse.unsupported({"sparse_init_block"}, "0", str("it is ", first));
  const char* const key = "sparse_disable_index_value";
  MORACLE_TRY(const std::vector<bool> disabled,
              read_flags(sparse, key, static_cast<int64_t>(layers.size())));
  for (size_t layer = 0; layer < disabled.size(); ++layer) {
    if (layers[layer] && !disabled[layer])
      return sparse.unsupported({key}, "1 where blocks are selected",
                                str("it is 0 for layer ", layer));
  }
  return {};
}

// A setting of the indexer: its key in sparse_attention_config, which comes first, and the one that
// transformers writes.
struct IndexerKeys {
  const Config& config;
  const std::optional<Config>& published;
  const char *older, *newer;

  bool is_published() const { return published && published->has({older}); }
  Result<int64_t> read(int64_t least) const {
    return is_published() ? published->integer({older}, least, 1 << 20)
                          : config.integer({newer}, least, 1 << 20);
  }
  Error refuse(const std::string& need, const std::string& fact) const {
    return is_published() ? published->unsupported({older}, need, fact)
                          : config.unsupported({newer}, need, fact);
  }
};

Status read_indexer(const Config& config, int64_t num_layers, Spec& spec) {
  MORACLE_TRY(const auto published, config.object({"sparse_attention_config"}));
  const auto keys = [&](const char* older, const char* newer) {
    return IndexerKeys{config, published, older, newer};
  };
  const IndexerKeys heads = keys("sparse_num_index_heads", "index_n_heads"),
                    columns = keys("sparse_index_dim", "index_head_dim"),
                    block = keys("sparse_block_size", "index_block_size"),
                    chosen = keys("sparse_topk_blocks", "index_topk_blocks"),
                    local = keys("sparse_local_block", "index_local_blocks");
  IndexerSpec& indexer = spec.indexer;
  MORACLE_TRY(indexer.num_heads, heads.read(1));
  MORACLE_TRY(indexer.head_dim, columns.read(1));
  MORACLE_TRY(indexer.block, block.read(1));
  MORACLE_TRY(const int64_t blocks, chosen.read(1));
  MORACLE_TRY(indexer.local_blocks, local.read(0));
  indexer.top_k = blocks * indexer.block;
  indexer.norm_epsilon = spec.decoder.norm_epsilon;
  MORACLE_TRY(spec.sparse,
              read_types(config, "layer_types", num_layers, "minimax_m3_sparse", "full_attention"));
  if (spec.sparse.empty() && published) {
    MORACLE_TRY(spec.sparse, read_flags(*published, "sparse_attention_freq", num_layers));
  }
  spec.sparse.resize(static_cast<size_t>(num_layers));
  if (std::find(spec.sparse.begin(), spec.sparse.end(), true) == spec.sparse.end()) return {};
  if (published) MORACLE_CHECK(check_published(*published, spec.sparse));
  if (spec.heads.num_kv_heads % indexer.num_heads != 0)
    return heads.refuse(str("a divisor of ", spec.heads.num_kv_heads, " heads of keys"),
                        str("it is ", indexer.num_heads));
  if (indexer.local_blocks > blocks)
    return local.refuse(str("at most the ", blocks, " blocks that a token sees"),
                        str("it is ", indexer.local_blocks));
  const auto rotated = static_cast<int64_t>(2 * spec.heads.rotary.frequencies.size());
  if (indexer.head_dim < rotated)
    return columns.refuse(str("at least the ", rotated, " rotated columns"),
                          str("it is ", indexer.head_dim));
  if (indexer.top_k <= INT32_MAX) return {};
  return chosen.refuse("blocks of fewer than 2^31 positions together",
                       str("they have ", indexer.top_k));
}

Status read_feed_forward(const Config& config, int64_t num_layers, Spec& spec) {
  MORACLE_TRY(spec.dense_intermediate, config.integer({"dense_intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(spec.shared_intermediate, config.integer({"shared_intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(const int64_t size, config.integer({"intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(const int64_t other, config.integer_or(size, {"moe_intermediate_size"}));
  if (other != size)
    return config.unsupported({"moe_intermediate_size"}, str(size, ", which is intermediate_size"),
                              str("it is ", other));
  MORACLE_TRY(const int64_t shared, config.integer_or(1, {"n_shared_experts"}));
  if (shared != 1) return config.unsupported({"n_shared_experts"}, "1", str("there are ", shared));
  MORACLE_TRY(spec.dense, read_types(config, "mlp_layer_types", num_layers, "dense", "sparse"));
  if (spec.dense.empty()) {
    MORACLE_TRY(spec.dense, read_flags(config, "moe_layer_freq", num_layers));
    spec.dense.flip();
  }
  spec.dense.resize(static_cast<size_t>(num_layers));
  SharedMoeSpec counted;
  counted.dense = spec.dense;
  MORACLE_TRY(counted.dense_layers, config.integer_or(0, {"first_k_dense_replace"}));
  MORACLE_CHECK(check_dense_layers(config, counted));
  spec.activation = {.function = Activation::kSwigluOai};
  MORACLE_TRY(const double alpha, config.number({"swiglu_alpha"}));
  MORACLE_TRY(const double limit, config.number({"swiglu_limit"}));
  if (!(std::abs(alpha) <= 1e30))
    return config.wrong({"swiglu_alpha"}, "a finite number", str("it is ", alpha));
  if (!(limit > 0 && limit <= 1e30))
    return config.wrong({"swiglu_limit"}, "a number above 0", str("it is ", limit));
  spec.activation.alpha = static_cast<float>(alpha);
  spec.activation.limit = static_cast<float>(limit);
  return {};
}

Result<Spec> read(const Config& config, int64_t num_layers) {
  Spec spec;
  MORACLE_TRY(const std::string function, config.text_or("swigluoai", {"hidden_act"}));
  // transformers writes silu, and computes the clamped function whatever the key says.
  if (function != "swigluoai" && function != "silu")
    return config.unsupported({"hidden_act"}, "swigluoai", "it is " + function);
  MORACLE_TRY(spec.decoder, read_decoder_spec(config, "rms_norm_eps", Activation::kSwigluOai));
  spec.decoder.norm_offset = 1;
  MORACLE_TRY(spec.heads, read_grouped_query(config, spec.decoder, false, {.partial = true}));
  MORACLE_CHECK(read_indexer(config, num_layers, spec));
  MORACLE_CHECK(read_feed_forward(config, num_layers, spec));
  // Published files have these keys. transformers computes the model as if each had this value.
  for (const char* key : {"use_gemma_norm", "use_qk_norm", "use_routing_bias"})
    MORACLE_CHECK(require_flag(config, key, true));
  MORACLE_CHECK(require_flag(config, "attention_output_gate", false));
  MORACLE_TRY(const std::string norms, config.text_or("per_head", {"qk_norm_type"}));
  if (norms != "per_head")
    return config.unsupported({"qk_norm_type"}, "per_head", "it is " + norms);
  MORACLE_CHECK(require_score(config, "sigmoid"));
  return spec;
}

// Files of transformers' text model have the names of its modules.
bool has_own_names(const Checkpoint& checkpoint) {
  const auto& tensors = checkpoint.state().tensors.all();
  const auto exists = [&](const std::string& prefix) {
    const auto at = tensors.lower_bound(prefix);
    return at != tensors.end() && at->first.starts_with(prefix);
  };
  for (int64_t layer = 0; layer < checkpoint.num_layers(); ++layer) {
    for (const char* name : {"mlp.experts.", "mlp.shared_experts.", "mlp.gate.",
                             "mlp.gate_up_proj.", "self_attn.indexer."})
      if (exists(layer_prefix(checkpoint, layer) + name)) return true;
  }
  return false;
}

Result<DescribedWeights> describe_mlp(const Checkpoint& checkpoint, const std::string& mlp,
                                      const Spec& spec, int64_t intermediate) {
  const MlpNames names = spec.own_names ? MlpNames{"gate_up_proj", nullptr} : MlpNames{};
  MORACLE_TRY(DescribedWeights weights,
              describe_dense_mlp(checkpoint, mlp, spec.decoder, intermediate, names));
  weights.spec.activation = spec.activation;
  return weights;
}

Result<IndexerDescription> describe_indexer(const Checkpoint& checkpoint,
                                            const std::string& self_attn, const Spec& spec) {
  const std::string prefix = self_attn + (spec.own_names ? "indexer." : "index_");
  const IndexerSpec& sizes = spec.indexer;
  const int64_t hidden = spec.decoder.hidden_size;
  MORACLE_TRY(DescribedMatrix q, describe_linear(checkpoint, {prefix + "q_proj"},
                                                 {sizes.num_heads * sizes.head_dim}, hidden));
  MORACLE_TRY(DescribedMatrix k,
              describe_linear(checkpoint, {prefix + "k_proj"}, {sizes.head_dim}, hidden));
  const auto norm = [&](const char* name) {
    return describe_norm(checkpoint, prefix + name, sizes.head_dim, spec.decoder);
  };
  MORACLE_TRY(std::vector<float> q_norm, norm("q_norm"));
  MORACLE_TRY(std::vector<float> k_norm, norm("k_norm"));
  return IndexerDescription{std::move(q_norm), std::move(k_norm), std::move(q), std::move(k)};
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& spec,
                                        int64_t layer) {
  const auto at = static_cast<size_t>(layer);
  const std::string prefix = layer_prefix(checkpoint, layer), self_attn = prefix + "self_attn.";
  GroupedQuerySpec heads = spec.heads;
  if (spec.sparse[at]) heads.indexer = spec.indexer;
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, self_attn, spec.decoder, heads));
  MORACLE_CHECK(describe_head_norms(checkpoint, self_attn, spec.decoder, attention));
  if (spec.sparse[at]) {
    MORACLE_TRY(attention.indexer, describe_indexer(checkpoint, self_attn, spec));
  }
  if (spec.dense[at]) {
    MORACLE_TRY(DescribedWeights mlp,
                describe_mlp(checkpoint, prefix + "mlp", spec, spec.dense_intermediate));
    return describe_decoder_layer(checkpoint, spec.decoder, layer, std::move(attention),
                                  std::move(mlp));
  }
  const std::string moe = prefix + (spec.own_names ? "mlp" : "block_sparse_moe");
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  experts.spec.routing.correction_bias = true;  // a file without it is incomplete
  const std::string bias =
      moe + (spec.own_names ? ".gate.e_score_correction_bias" : ".e_score_correction_bias");
  MORACLE_TRY(RouterDescription router,
              describe_router(checkpoint, moe + ".gate", experts.spec, bias));
  MORACLE_TRY(DescribedWeights shared,
              describe_mlp(checkpoint, moe + ".shared_experts", spec, spec.shared_intermediate));
  return describe_decoder_layer(checkpoint, spec.decoder, layer, std::move(attention),
                                std::move(experts), std::move(router),
                                SharedExpertDescription{std::move(shared), {}});
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  spec.own_names = has_own_names(checkpoint);
  return describe_decoder(checkpoint, spec.decoder,
                          [&](int64_t layer) { return describe_layer(checkpoint, spec, layer); });
}

}  // namespace
}  // namespace minimax_m3

// The weights of the chosen experts always sum to one before the scaling factor.
constinit const Family kMinimaxM3Family = {
    .architecture = "MiniMaxM3ForCausalLM",
    .also = "MiniMaxM3VLForCausalLM",
    .multimodal = "MiniMaxM3SparseForConditionalGeneration",
    .models = "MiniMax-M3",
    .notes =
        "text only, without multi-token prediction; partial_rotary_factor tells the rotated part "
        "of a head, rotary_dim is not read, as in transformers",
    .describe = minimax_m3::describe,
    .experts = {.defaults = minimax_m3::kDefaults,
                .intermediate_size = minimax_m3::kExpertSize,
                .score = Score::kSigmoid,
                .renormalize = true,
                .renormalize_keys = {},
                .correction_bias = minimax_m3::kBias,
                // config.json may say silu and means the clamped function.
                .activation = Activation::kSwigluOai}};

}  // namespace moracle
