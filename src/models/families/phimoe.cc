// Phi-3.5-MoE: GQA with LongRoPE, LayerNorm with biases, and the two experts of a sparse mixer.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace phimoe {
namespace {

// The defaults of transformers' PhimoeConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 32064, "hidden_size": 4096, "intermediate_size": 6400, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "num_experts_per_tok": 2, "num_local_experts": 16, "router_jitter_noise": 0.01,
  "attention_bias": false, "lm_head_bias": false, "rope_theta": 1000000.0
})";

struct Spec {
  DecoderSpec decoder;
  GroupedQuerySpec heads;
  bool biased = false;
};

Result<Spec> read(const Config& config) {
  Spec spec;
  constexpr RotaryKinds kKinds{.longrope = true};
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  spec.decoder.layer_norm = true;
  MORACLE_TRY(spec.heads, read_grouped_query(config, spec.decoder, false, kKinds));
  MORACLE_TRY(spec.heads.window, config.integer_or(0, {"sliding_window"}, 1));
  MORACLE_TRY(const RotaryAndScale rope, read_rotary(config, spec.heads.head_dim, kKinds));
  spec.decoder.short_context = rope.short_context;
  spec.decoder.short_factor = rope.short_factor;
  spec.decoder.long_factor = rope.long_factor;
  MORACLE_TRY(spec.biased, config.boolean_or(false, {"attention_bias"}));
  MORACLE_TRY(const int64_t top_k, config.integer({"num_experts_per_tok"}, 1));
  if (top_k != 2)
    return config.unsupported({"num_experts_per_tok"}, "2, the choices of a sparse mixer",
                              str("it is ", top_k));
  return spec;
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& spec,
                                        int64_t layer) {
  const std::string prefix = layer_prefix(checkpoint, layer);
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, prefix + "self_attn.", spec.decoder, spec.heads,
                                     {spec.biased, spec.biased}));
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  // Files of transformers 5 that were saved without conversion name the router otherwise.
  const std::string& name = experts.spec.name;
  const std::string block = name.substr(0, name.rfind('.'));
  const bool published = block.ends_with("block_sparse_moe");
  MORACLE_TRY(RouterDescription router,
              describe_router(checkpoint, block + (published ? ".gate" : ".router"), experts.spec));
  return describe_decoder_layer(checkpoint, spec.decoder, layer, std::move(attention),
                                std::move(experts), std::move(router));
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const Spec spec, read(config));
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"lm_head_bias"}));
  if (biased) MORACLE_CHECK(require_bias(checkpoint, {checkpoint.state().output}));
  return describe_decoder(checkpoint, spec.decoder,
                          [&](int64_t layer) { return describe_layer(checkpoint, spec, layer); });
}

constexpr GgufKey kGgufKeys[] = {
    {"feed_forward_length", "intermediate_size"},
    {"attention.sliding_window", "sliding_window", false},
    {"rope.scaling.original_context_length", "original_max_position_embeddings"},
    {"rope.scaling.attn_factor", "rope_scaling.short_mscale"},
};
// The converter computes one factor from the lengths of the contexts, in place of short_mscale and
// long_mscale.
Status finish_gguf(GgufModel& model) {
  nlohmann::json &config = model.config, &rope = config["rope_scaling"];
  rope["rope_type"] = "longrope";
  rope["long_mscale"] = rope["short_mscale"];
  for (const char* length : {"short", "long"}) {
    const std::string name = str("rope_factors_", length, ".weight");
    MORACLE_TRY(const std::vector<float> factors, gguf_values(model, name));
    rope[str(length, "_factor")] = factors;
    model.tensors.erase(name);
  }
  // 0 stands for no window.
  if (config.contains("sliding_window") && config["sliding_window"] == 0)
    config["sliding_window"] = nullptr;
  set_attention_bias(model);
  MORACLE_CHECK(model.stored.get("output.bias"));
  return {};
}
Status write_gguf(GgufDraft& draft) {
  for (const char* length : {"short", "long"}) {
    const std::string key = str(length, "_factor");
    const nlohmann::json* const factors = draft.rope ? draft.rope->find({key.c_str()}) : nullptr;
    if (factors == nullptr || !factors->is_array()) continue;  // the family refuses it
    std::vector<float> numbers;
    for (const nlohmann::json& factor : *factors)
      numbers.push_back(factor.is_number() ? factor.get<float>() : 0);
    draft.tensors.insert_or_assign(str("rope_factors_", length, ".weight"),
                                   gguf_numbers(std::move(numbers)));
  }
  return {};
}
constexpr GgufConvention kGguf[] = {{.architecture = "phimoe",
                                     .keys = kGgufKeys,
                                     .tensors = kBlockSparseGgufTensors,
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace phimoe

constinit const Family kPhimoeFamily = {
    .architecture = "PhimoeForCausalLM",
    .also = "PhiMoEForCausalLM",
    .models = "Phi-3.5-MoE",
    .notes = "a sequence that outgrows `original_max_position_embeddings` is computed anew once",
    .describe = phimoe::describe,
    .experts = {.defaults = phimoe::kDefaults,
                .intermediate_size = kOnlySizeKeys,
                .score = Score::kSparseMixer,
                .gguf = phimoe::kGguf}};

}  // namespace moracle
