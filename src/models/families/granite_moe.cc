// Granite-MoE: GQA with a scale of its own. Factors on the embedding, on what layers add to the
// residual, and on the logits. Softmax over the logits of the chosen experts. GraniteMoeShared adds
// a shared expert. The experts of Granite-4.0-H, whose other layers are Mamba-2, have the same
// form.
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace granite_moe {
namespace {

// The defaults of transformers' GraniteMoeConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false,
  "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
  "attention_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2,
  "rope_theta": 10000.0
})";

// The defaults of transformers' GraniteMoeSharedConfig.
constexpr std::string_view kSharedDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false,
  "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
  "attention_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2,
  "shared_intermediate_size": 0, "rope_theta": 10000.0
})";

// The defaults of transformers' GraniteMoeHybridConfig.
constexpr std::string_view kHybridDefaults = R"({
  "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "hidden_act": "silu",
  "num_local_experts": 8, "num_experts_per_tok": 2
})";

constexpr ExpertNames kNames[] = {{.experts = "model.layers.{L}.block_sparse_moe",
                                   .up = "input_linear.weight",
                                   .down = "output_linear.weight",
                                   .fused = true}};
constexpr const char* kSize[] = {"intermediate_size"};

Result<float> read_factor(const Config& config, const char* key) {
  MORACLE_TRY(const double factor, config.number({key}));
  if (factor > 0 && factor <= 1e6) return static_cast<float>(factor);
  return config.wrong({key}, "a number above 0", str("it is ", factor));
}

struct Spec {
  DecoderSpec decoder;
  GroupedQuerySpec heads;
  float residual_scale = 1;  // of the outputs of attention and experts
  bool biased = false;
  int64_t shared_intermediate = 0;  // 0: no shared expert
};

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& all,
                                        int64_t layer) {
  const DecoderSpec& spec = all.decoder;
  const std::string prefix = layer_prefix(checkpoint, layer);
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, prefix + "self_attn.", spec, all.heads,
                                     {all.biased, all.biased}));
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  MORACLE_TRY(RouterDescription router,
              describe_router(checkpoint, prefix + "block_sparse_moe.router.layer", experts.spec));
  MORACLE_TRY(LayerDescription described,
              describe_decoder_layer(checkpoint, spec, layer, std::move(attention),
                                     std::move(experts), std::move(router)));
  described.attention_output.scale = described.mlp_output.scale = all.residual_scale;
  if (all.shared_intermediate == 0) return described;
  // GGUF files have gate and up apart.
  const std::string mlp = prefix + "shared_mlp";
  const bool apart = checkpoint.has_tensor(mlp + ".gate_proj.weight") ||
                     checkpoint.has_tensor(mlp + ".up_proj.weight");
  const MlpNames names = apart ? MlpNames{} : MlpNames{"input_linear", nullptr, "output_linear"};
  MORACLE_TRY(DescribedWeights shared,
              describe_dense_mlp(checkpoint, mlp, spec, all.shared_intermediate, names));
  described.shared.emplace(SharedExpertDescription{std::move(shared), {}});
  return described;
}

Result<Description> describe_with(const Checkpoint& checkpoint, bool shared) {
  const Config& config = checkpoint.state().config;
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  MORACLE_TRY(spec.decoder.embedding_scale, read_factor(config, "embedding_multiplier"));
  MORACLE_TRY(spec.residual_scale, read_factor(config, "residual_multiplier"));
  MORACLE_TRY(const float divisor, read_factor(config, "logits_scaling"));
  MORACLE_TRY(spec.heads, read_grouped_query(config, spec.decoder));
  MORACLE_TRY(spec.heads.scale, read_factor(config, "attention_multiplier"));
  MORACLE_TRY(spec.biased, config.boolean_or(false, {"attention_bias"}));
  if (shared) {
    MORACLE_TRY(spec.shared_intermediate,
                config.integer_or(0, {"shared_intermediate_size"}, 0, 1 << 24));
  }
  MORACLE_TRY(Description description,
              describe_decoder(checkpoint, spec.decoder, [&](int64_t layer) {
                return describe_layer(checkpoint, spec, layer);
              }));
  // The output layer is linear: its input may be divided instead of the logits.
  for (float& weight : description.final_norm) weight /= divisor;
  return description;
}

Result<Description> describe_plain(const Checkpoint& checkpoint) {
  return describe_with(checkpoint, false);
}
Result<Description> describe_shared(const Checkpoint& checkpoint) {
  return describe_with(checkpoint, true);
}

constexpr ExpertConvention convention(std::string_view defaults,
                                      std::span<const GgufConvention> gguf = {}) {
  return {.defaults = defaults,
          .names = kNames,
          .intermediate_size = kSize,
          .score = Score::kTopkThenSoftmax,
          .gguf = gguf};
}

constexpr GgufKey kGgufKeys[] = {
    {"feed_forward_length", "intermediate_size"},
    {"expert_shared_feed_forward_length", "shared_intermediate_size", false},
    {"attention.scale", "attention_multiplier"},
    {"embedding_scale", "embedding_multiplier", false},
    {"residual_scale", "residual_multiplier", false},
    {"logit_scale", "logits_scaling"},
};
constexpr GgufTensor kGgufTensors[] = {
    {"blk.{L}.ffn_gate_inp", "model.layers.{L}.block_sparse_moe.router.layer"},
    {"blk.{L}.ffn_gate_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.gate_proj"},
    {"blk.{L}.ffn_up_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.up_proj"},
    {"blk.{L}.ffn_gate_up_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.gate_proj",
     "model.layers.{L}.block_sparse_moe.experts.{E}.up_proj"},
    {"blk.{L}.ffn_down_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.down_proj"},
    {"blk.{L}.ffn_gate_shexp", "model.layers.{L}.shared_mlp.gate_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.shared_mlp.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.shared_mlp.down_proj"},
};
constexpr const char* kGgufShared = "granitemoe.expert_shared_feed_forward_length";
bool has_shared(const Config& metadata, const Tensors&) {
  return metadata.has({kGgufShared});
}
bool lacks_shared(const Config& metadata, const Tensors&) {
  return !metadata.has({kGgufShared});
}
Status finish_gguf(GgufModel& model) {
  set_attention_bias(model);
  return undo_rotary_order(model);
}
Status write_gguf(GgufDraft& draft) {
  split_rows(draft, ".shared_mlp.input_linear.weight", ".shared_mlp.gate_proj.weight",
             ".shared_mlp.up_proj.weight");
  for (int64_t layer = 0; layer < draft.num_layers; ++layer) {
    const std::string mlp = str("model.layers.", layer, ".shared_mlp.");
    auto down = draft.tensors.extract(mlp + "output_linear.weight");
    if (down.empty()) continue;
    down.key() = mlp + "down_proj.weight";
    draft.tensors.insert(std::move(down));
  }
  return {};
}
constexpr GgufConvention kGguf[] = {{.architecture = "granitemoe",
                                     .keys = kGgufKeys,
                                     .tensors = kGgufTensors,
                                     .applies = lacks_shared,
                                     .finish = finish_gguf,
                                     .write = write_gguf}};
constexpr GgufConvention kSharedGguf[] = {{.architecture = "granitemoe",
                                           .keys = kGgufKeys,
                                           .tensors = kGgufTensors,
                                           .applies = has_shared,
                                           .finish = finish_gguf,
                                           .write = write_gguf}};

}  // namespace
}  // namespace granite_moe

constinit const Family kGraniteMoeFamily = {
    .architecture = "GraniteMoeForCausalLM",
    .models = "Granite-MoE",
    .describe = granite_moe::describe_plain,
    .experts = granite_moe::convention(granite_moe::kDefaults, granite_moe::kGguf)};
constinit const Family kGraniteMoeSharedFamily = {
    .architecture = "GraniteMoeSharedForCausalLM",
    .models = "Granite-MoE with a shared expert",
    .describe = granite_moe::describe_shared,
    .experts = granite_moe::convention(granite_moe::kSharedDefaults, granite_moe::kSharedGguf)};
constinit const Family kGraniteMoeHybridFamily = {
    .architecture = "GraniteMoeHybridForCausalLM",
    .models = "Granite-4.0-H",
    .notes = "lacks Mamba-2 layers",
    .experts = granite_moe::convention(granite_moe::kHybridDefaults)};

}  // namespace moracle
