// DeepSeek-V4 Flash and Pro: compressed attention (attention/compressed.cc), hyper-connections, and
// a first few layers whose experts follow from token ids. The numbers are those of transformers'
// DeepseekV4ForCausalLM, which rounds no activation of the indexer and of the cache. Layers for
// multi-token prediction are not run.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/experts/matrix_share.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/latent/deepseek_v4_names.h"
#include "models/families/latent/hyper_connections.h"
#include "models/families/shared_moe.h"

namespace moracle {
namespace deepseek_v4 {
namespace {

// The defaults of transformers' DeepseekV4Config.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 129280, "hidden_size": 4096, "moe_intermediate_size": 2048,
  "num_hidden_layers": 43, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
  "q_lora_rank": 1024, "num_experts_per_tok": 6, "n_routed_experts": 256, "n_shared_experts": 1,
  "scoring_func": "sqrtsoftplus", "norm_topk_prob": true, "routed_scaling_factor": 1.5,
  "max_position_embeddings": 1048576, "rope_theta": 10000.0, "compress_rope_theta": 160000.0,
  "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06, "swiglu_limit": 10.0,
  "sliding_window": 128, "o_groups": 8, "o_lora_rank": 1024, "index_n_heads": 64,
  "index_head_dim": 128, "index_topk": 512, "hidden_act": "silu", "rms_norm_eps": 1e-06,
  "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false
})";

// The kinds of attention. Entries of kSparse read the tokens of two, and an indexer chooses them.
enum class Kind : uint8_t { kWindow, kSparse, kHeavy };
constexpr const char* kKindNames[] = {"sliding_attention", "compressed_sparse_attention",
                                      "heavily_compressed_attention"};

Result<Kind> kind_of(const Config& config, const std::string& name) {
  for (const Kind kind : {Kind::kWindow, Kind::kSparse, Kind::kHeavy}) {
    if (name == kKindNames[static_cast<int>(kind)]) return kind;
  }
  return config.unsupported({"layer_types"}, join(kKindNames), "it has " + name);
}

// The layers by layer_types, else by compress_ratios, else one kind and the other in turn.
// Published lists go on with the layers for multi-token prediction.
Result<std::vector<Kind>> read_kinds(const Config& config, int64_t num_layers) {
  std::vector<Kind> kinds;
  const auto count = static_cast<size_t>(num_layers);
  const auto needs = [&](const char* key, size_t has) {
    return config.wrong({key}, str("one for each of ", num_layers, " layers"), str("it has ", has));
  };
  if (config.has({"layer_types"})) {
    MORACLE_TRY(const std::vector<std::string> names, config.texts({"layer_types"}));
    if (names.size() != count) return needs("layer_types", names.size());
    for (const std::string& name : names) {
      MORACLE_TRY(const Kind kind, kind_of(config, name));
      kinds.push_back(kind);
    }
    return kinds;
  }
  MORACLE_TRY(const std::vector<int64_t> ratios, config.integers({"compress_ratios"}));
  if (ratios.empty()) {
    for (size_t layer = 0; layer < count; ++layer)
      kinds.push_back(layer >= 2 && layer % 2 != 0 ? Kind::kSparse : Kind::kHeavy);
    return kinds;
  }
  if (ratios.size() < count) return needs("compress_ratios", ratios.size());
  for (size_t layer = 0; layer < count; ++layer) {
    const int64_t ratio = ratios[layer];
    if (ratio != 0 && ratio != 4 && ratio != 128)
      return config.unsupported({"compress_ratios"}, "0, 4 and 128", str("it has ", ratio));
    kinds.push_back(ratio == 0 ? Kind::kWindow : ratio == 4 ? Kind::kSparse : Kind::kHeavy);
  }
  return kinds;
}

// Tokens of an entry.
Result<int64_t> read_rate(const Config& config, Kind kind) {
  if (kind == Kind::kWindow) return 0;
  const bool sparse = kind == Kind::kSparse;
  constexpr int64_t kMost = 1 << 14;
  const char* const older = sparse ? "compress_rate_csa" : "compress_rate_hca";
  if (config.has({older})) return config.integer({older}, 1, kMost);
  const int64_t usual = sparse ? 4 : 128;
  MORACLE_TRY(const auto rates, config.object({"compress_rates"}));
  if (!rates) return usual;
  return rates->integer_or(usual, {kKindNames[static_cast<int>(kind)]}, 1, kMost);
}

// The layers whose experts follow from token ids.
Result<std::vector<bool>> read_hash_layers(const Config& config, int64_t num_layers) {
  std::vector<bool> by_token(static_cast<size_t>(num_layers));
  MORACLE_TRY(const std::vector<std::string> types, config.texts({"mlp_layer_types"}));
  if (types.empty()) {
    MORACLE_TRY(const int64_t count, config.integer_or(3, {"num_hash_layers"}));
    for (int64_t l = 0; l < std::min(count, num_layers); ++l) by_token[l] = true;
    return by_token;
  }
  if (types.size() != by_token.size()) {
    return config.wrong({"mlp_layer_types"}, str("one for each of ", num_layers, " layers"),
                        str("it has ", types.size()));
  }
  for (size_t l = 0; l < types.size(); ++l) {
    if (types[l] != "hash_moe" && types[l] != "moe")
      return config.unsupported({"mlp_layer_types"}, "hash_moe and moe", "it has " + types[l]);
    by_token[l] = types[l] == "hash_moe";
  }
  return by_token;
}

// RoPE of layers with entries ("compress") and without ("main"): an object for each, or one of
// YaRN for those with entries. Its factor on sines and cosines is 1 unless the config has one.
Result<Rotary> read_rope(const Config& config, int64_t head_dim, bool compresses) {
  MORACLE_TRY(const auto settings, rotary_settings(config));
  nlohmann::json rope = settings ? settings->value() : nlohmann::json::object();
  const char* const label = compresses ? "compress" : "main";
  const bool nested = rope.contains("main") && rope["main"].is_object() &&
                      rope.contains("compress") && rope["compress"].is_object();
  const Config::Keys theta_key = {compresses ? "compress_rope_theta" : "rope_theta"};
  if (nested) {
    rope = rope[label];
  } else {
    if (!compresses) rope = nlohmann::json::object();
    MORACLE_TRY(const double theta, config.number(theta_key));
    rope["rope_theta"] = theta;
  }
  const std::string type = rope.value("rope_type", rope.value("type", std::string("default")));
  if (type == "yarn" && !nested && !rope.contains("attention_factor"))
    rope["attention_factor"] = 1.0;
  if (!rope.contains("partial_rotary_factor")) {
    double fraction = 64.0 / 512;
    if (config.has({"partial_rotary_factor"})) {
      MORACLE_TRY(fraction, config.number({"partial_rotary_factor"}));
    } else if (config.has({"qk_rope_head_dim"})) {
      MORACLE_TRY(const int64_t columns, config.integer({"qk_rope_head_dim"}, 2, head_dim));
      fraction = static_cast<double>(columns) / static_cast<double>(head_dim);
    }
    rope["partial_rotary_factor"] = fraction;
  }
  const Config own = Config::from(std::move(rope), config.path());
  MORACLE_TRY(RotaryAndScale read, read_rotary(config, own, head_dim, {.partial = true}));
  read.rotary.interleaved = true;
  return std::move(read.rotary);
}

Result<CompressedSpec> read_attention(const Config& config, const DecoderSpec& decoder, Kind kind) {
  CompressedSpec spec;
  constexpr int64_t kMost = 1 << 16;
  MORACLE_TRY(spec.num_heads, config.integer({"num_attention_heads"}, 1, kMost));
  MORACLE_TRY(const int64_t kv_heads, config.integer({"num_key_value_heads"}, 1, kMost));
  if (kv_heads != 1)
    return config.unsupported({"num_key_value_heads"}, "1", str("it is ", kv_heads));
  MORACLE_TRY(spec.head_dim, config.integer({"head_dim"}, 2, kMost));
  MORACLE_TRY(spec.q_rank, config.integer({"q_lora_rank"}, 1, kMost));
  MORACLE_TRY(spec.window, config.integer({"sliding_window"}, 1));
  MORACLE_TRY(spec.num_groups, config.integer({"o_groups"}, 1, spec.num_heads));
  MORACLE_TRY(spec.group_rank, config.integer({"o_lora_rank"}, 1, kMost));
  if (spec.heads_size() % spec.num_groups != 0) {
    return config.wrong({"o_groups"}, str("a divisor of ", spec.heads_size(), " columns"),
                        str("it is ", spec.num_groups));
  }
  spec.norm_epsilon = decoder.norm_epsilon;
  MORACLE_TRY(spec.rate, read_rate(config, kind));
  MORACLE_TRY(spec.rotary, read_rope(config, spec.head_dim, kind != Kind::kWindow));
  if (kind != Kind::kSparse) return spec;
  spec.overlap = true;
  const auto rotated = static_cast<int64_t>(2 * spec.rotary.frequencies.size());
  MORACLE_TRY(spec.indexer.top_k, config.integer({"index_topk"}, 1));
  MORACLE_TRY(spec.indexer.num_heads, config.integer({"index_n_heads"}, 1, 1 << 12));
  MORACLE_TRY(spec.indexer.head_dim, config.integer({"index_head_dim"}, rotated, 1 << 14));
  return spec;
}

// Describes tensors of one layer.
struct Layer {
  const Checkpoint& checkpoint;
  const DecoderSpec& decoder;
  std::string prefix;

  Result<DescribedMatrix> linear(const std::string& name, int64_t rows, int64_t cols) const {
    MORACLE_TRY(DescribedMatrix matrix, describe_linear(checkpoint, {prefix + name}, {rows}, cols));
    if (!matrix.shape().bias) return matrix;
    return checkpoint.state().tensors.wrong(prefix + name + ".bias", "not to be there",
                                            "the architecture has no such bias");
  }
  Result<std::vector<float>> vector(const std::string& name, int64_t size) const {
    return checkpoint.vector(prefix + name, size);
  }

  Result<CompressorDescription> compressor(const std::string& name, const CompressedSpec& spec,
                                           int64_t dim) const {
    const int64_t columns = spec.overlap ? 2 * dim : dim;
    MORACLE_TRY(auto bias,
                checkpoint.floats(prefix + name + "position_bias", {spec.rate, columns}));
    MORACLE_TRY(auto norm, vector(name + "kv_norm.weight", dim));
    MORACLE_TRY(
        DescribedMatrix rows,
        describe_linear(checkpoint, {prefix + name + "kv_proj", prefix + name + "gate_proj"},
                        {columns, columns}, decoder.hidden_size));
    return CompressorDescription{std::move(bias), std::move(norm), std::move(rows)};
  }

  Result<CompressedDescription> attention(const CompressedSpec& spec) const {
    const int64_t hidden = decoder.hidden_size;
    MORACLE_TRY(auto q_norm, vector("self_attn.q_a_norm.weight", spec.q_rank));
    MORACLE_TRY(auto kv_norm, vector("self_attn.kv_norm.weight", spec.head_dim));
    MORACLE_TRY(auto sinks, vector("self_attn.sinks", spec.num_heads));
    MORACLE_TRY(auto q_a, linear("self_attn.q_a_proj", spec.q_rank, hidden));
    MORACLE_TRY(auto q_b, linear("self_attn.q_b_proj", spec.heads_size(), spec.q_rank));
    MORACLE_TRY(auto kv, linear("self_attn.kv_proj", spec.head_dim, hidden));
    const int64_t rank = spec.group_rank;
    std::vector<DescribedMatrix> o_a;
    for (int64_t group = 0; group < spec.num_groups; ++group) {
      MORACLE_TRY(DescribedMatrix all, linear("self_attn.o_a_proj", spec.num_groups * rank,
                                              spec.heads_size() / spec.num_groups));
      // A block of scales may belong to two groups.
      MORACLE_TRY(DescribedMatrix own,
                  MatrixShare::rows(MatrixShare::divide_blocks(std::move(all), rank),
                                    {{group * rank, (group + 1) * rank}}));
      o_a.push_back(std::move(own));
    }
    MORACLE_TRY(auto o_b, linear("self_attn.o_b_proj", hidden, spec.num_groups * rank));
    CompressedDescription described{
        spec,           std::move(q_norm), std::move(kv_norm), std::move(sinks), std::move(q_a),
        std::move(q_b), std::move(kv),     std::move(o_a),     std::move(o_b)};
    if (spec.rate == 0) return described;
    MORACLE_TRY(described.compressor, compressor("self_attn.compressor.", spec, spec.head_dim));
    const IndexerSpec& indexer = spec.indexer;
    if (indexer.top_k == 0) return described;
    const std::string name = "self_attn.compressor.indexer.";
    MORACLE_TRY(described.index_compressor, compressor(name, spec, indexer.head_dim));
    MORACLE_TRY(described.index_q,
                linear(name + "q_b_proj", indexer.num_heads * indexer.head_dim, spec.q_rank));
    MORACLE_TRY(described.index_weights,
                linear(name + "scorer.weights_proj", indexer.num_heads, hidden));
    return described;
  }

  // [vocab_size, top_k] of i64 or i32.
  Result<std::vector<int32_t>> experts_of_ids(const LayerSpec& experts) const {
    const std::string name = prefix + "mlp.gate.tid2eid";
    const std::vector<int64_t> shape = {decoder.vocab_size, experts.top_k};
    MORACLE_TRY(const TensorView view, checkpoint.tensor(name));
    const Tensors& tensors = checkpoint.state().tensors;
    const bool wide = view.dtype == DType::kI64;
    if ((!wide && view.dtype != DType::kI32) || view.shape != shape)
      return tensors.wrong(name, str("i64 or i32 [", join(shape), "]"), "it is " + to_string(view));
    MORACLE_TRY(const std::vector<std::byte> bytes, checkpoint.read(name));
    std::vector<int32_t> ids(static_cast<size_t>(view.num_elements()));
    for (size_t i = 0; i < ids.size(); ++i) {
      int64_t id = 0;
      int32_t narrow = 0;
      std::memcpy(wide ? static_cast<void*>(&id) : &narrow, &bytes[i * (wide ? 8 : 4)],
                  wide ? 8 : 4);
      if (!wide) id = narrow;
      if (id < 0 || id >= experts.num_experts) {
        return tensors.wrong(name, str("experts from 0 to ", experts.num_experts - 1),
                             str("element ", i, " is ", id));
      }
      ids[i] = static_cast<int32_t>(id);
    }
    return ids;
  }
};

struct Settings {
  DecoderSpec decoder;
  std::vector<CompressedSpec> attention;  // by layer
  std::vector<bool> by_token;             // likewise
  int64_t shared_intermediate = 0;
};

Result<Settings> read(const Config& config, int64_t num_layers) {
  Settings settings;
  DecoderSpec& decoder = settings.decoder;
  MORACLE_TRY(decoder, read_decoder_spec(config));
  MORACLE_CHECK(read_hyper_connections(config, decoder));
  for (const char* key : {"attention_bias", "mlp_bias"})
    MORACLE_CHECK(require_flag(config, key, false));
  // transformers always divides by the sum of the weights, whatever the key says.
  MORACLE_CHECK(require_flag(config, "norm_topk_prob", true));
  MORACLE_CHECK(require_score(config, "sqrtsoftplus"));
  MORACLE_TRY(const int64_t shared, config.integer({"n_shared_experts"}, 1, 1));
  MORACLE_TRY(const int64_t one, config.integer({"moe_intermediate_size"}, 1, 1 << 20));
  settings.shared_intermediate = shared * one;
  MORACLE_TRY(const std::vector<Kind> kinds, read_kinds(config, num_layers));
  for (const Kind kind : kinds) {
    MORACLE_TRY(CompressedSpec spec, read_attention(config, decoder, kind));
    settings.attention.push_back(std::move(spec));
  }
  MORACLE_TRY(settings.by_token, read_hash_layers(config, num_layers));
  return settings;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const Settings settings, read(config, checkpoint.num_layers()));
  const DecoderSpec& decoder = settings.decoder;
  const auto describe_layer = [&](int64_t l) -> Result<LayerDescription> {
    const Layer layer{checkpoint, decoder, layer_prefix(checkpoint, l)};
    const std::string mlp = layer.prefix + "mlp";
    const auto at = static_cast<size_t>(l);
    MORACLE_TRY(auto attention, layer.attention(settings.attention[at]));
    MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(l));
    // A file without a bias that the architecture has is incomplete.
    experts.spec.routing.correction_bias = !settings.by_token[at];
    MORACLE_TRY(RouterDescription router, describe_router(checkpoint, mlp + ".gate", experts.spec));
    if (settings.by_token[at]) {
      MORACLE_TRY(router.by_token, layer.experts_of_ids(experts.spec));
    }
    MORACLE_TRY(auto shared, describe_shared_expert(checkpoint, mlp + ".shared_experts", "",
                                                    decoder, settings.shared_intermediate));
    shared.mlp.spec.activation.limit = experts.spec.activation.limit;
    MORACLE_TRY(LayerDescription described,
                describe_decoder_layer(checkpoint, decoder, l, std::move(attention),
                                       std::move(experts), std::move(router), std::move(shared)));
    MORACLE_TRY(described.attention_hyper,
                describe_hyper_connection(checkpoint, layer.prefix + "attn_hc.", decoder));
    MORACLE_TRY(described.mlp_hyper,
                describe_hyper_connection(checkpoint, layer.prefix + "ffn_hc.", decoder));
    return described;
  };
  MORACLE_TRY(Description description, describe_decoder(checkpoint, decoder, describe_layer));
  MORACLE_TRY(description.final_hyper,
              describe_input_weights(checkpoint, checkpoint.state().root + "hc_head.hc_", decoder));
  return description;
}

}  // namespace
}  // namespace deepseek_v4

constinit const Family kDeepseekV4Family = {
    .architecture = "DeepseekV4ForCausalLM",
    .models = "DeepSeek-V4 Flash and Pro",
    .notes =
        "as in transformers, without rounding activations of the indexer and of the cache; on CPUs "
        "and NVIDIA GPUs; without multi-token prediction",
    .describe = deepseek_v4::describe,
    .experts = {.defaults = deepseek_v4::kDefaults,
                .score = Score::kSqrtSoftplus,
                .renormalize = true,
                .renormalize_keys = {},
                .tensor_name = deepseek_v4_name}};

}  // namespace moracle
