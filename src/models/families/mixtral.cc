// Mixtral: GQA without norms on q and k, with a window if config.json gives one. Softmax over all
// experts; the top_k weights are renormalized.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace mixtral {
namespace {

// The defaults of transformers' MixtralConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "num_experts_per_tok": 2, "num_local_experts": 8, "rope_theta": 1000000.0
})";

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                        const GroupedQuerySpec& heads, int64_t layer) {
  const std::string prefix = layer_prefix(checkpoint, layer);
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, prefix + "self_attn.", spec, heads));
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  // The block with experts and router is block_sparse_moe, or mlp in files from gptqmodel.
  const std::string& name = experts.spec.name;
  const std::string block = name.substr(0, name.rfind('.'));
  MORACLE_TRY(RouterDescription router, describe_router(checkpoint, block + ".gate", experts.spec));
  return describe_decoder_layer(checkpoint, spec, layer, std::move(attention), std::move(experts),
                                std::move(router));
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  // The routing depends on model_type.
  MORACLE_TRY(const std::string type, config.text({"model_type"}));
  if (type != "mixtral") return config.wrong({"model_type"}, "mixtral", "it is " + type);
  MORACLE_TRY(const DecoderSpec spec, read_decoder_spec(config));
  MORACLE_TRY(GroupedQuerySpec heads, read_grouped_query(config, spec, false));
  MORACLE_TRY(heads.window, config.integer_or(0, {"sliding_window"}, 1));
  return describe_decoder(checkpoint, spec, [&](int64_t layer) {
    return describe_layer(checkpoint, spec, heads, layer);
  });
}

constexpr GgufKey kGgufKeys[] = {
    {"feed_forward_length", "intermediate_size"},
    {"expert_feed_forward_length", "intermediate_size", false, true},
};
bool has_experts(const Config&, const Tensors& stored) {
  return has_stored(stored, ".ffn_gate_inp.weight");
}
Status finish_gguf(GgufModel& model) {
  MORACLE_CHECK(undo_rotary_order(model));
  return set_rotary_divisors(model);
}
Status write_gguf(GgufDraft& draft) {
  MORACLE_TRY(const int64_t head_dim, head_dim_of(draft));
  return put_rotary_divisors(draft, head_dim);
}
// llama.cpp has no window in this architecture.
constexpr GgufConvention kGguf[] = {{.architecture = "llama",
                                     .keys = kGgufKeys,
                                     .tensors = kBlockSparseGgufTensors,
                                     .constants = R"({"model_type": "mixtral"})",
                                     .applies = has_experts,
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace mixtral

constinit const Family kMixtralFamily = {.architecture = "MixtralForCausalLM",
                                         .models = "Mixtral",
                                         .describe = mixtral::describe,
                                         .experts = {.defaults = mixtral::kDefaults,
                                                     .intermediate_size = kOnlySizeKeys,
                                                     .renormalize = true,
                                                     .renormalize_keys = {},
                                                     .gguf = mixtral::kGguf}};

}  // namespace moracle
