// ERNIE-4.5: GQA with interleaved RoPE. Softmax routing with a correction bias of shape [1,
// experts], renormalized; shared experts. The layers for multi-token prediction are not run.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/module_tensors.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace ernie4_5_moe {
namespace {

// The defaults of transformers' Ernie4_5_MoeConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 103424, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28,
  "num_attention_heads": 20, "num_key_value_heads": 4, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "tie_word_embeddings": true,
  "use_bias": false, "moe_intermediate_size": 1536, "moe_k": 6, "moe_num_experts": 64,
  "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": -1,
  "moe_layer_interval": 1, "moe_norm_min": 1e-12, "rope_theta": 500000.0
})";

constexpr std::string_view kBias = "model.layers.{L}.mlp.moe_statics.e_score_correction_bias";
constexpr const char* kNumExperts[] = {"moe_num_experts", "num_experts"};
constexpr const char* kTopK[] = {"moe_k", "num_experts_per_tok"};

struct Sizes {
  int64_t first = 0, last = 0, interval = 1;  // the layers with experts
  int64_t dense_intermediate = 0, shared_intermediate = 0;
  bool is_dense(int64_t layer) const {
    return layer < first || layer > last || (layer + 1) % interval != 0;
  }
};

Result<Sizes> read_sizes(const Config& config, int64_t num_layers) {
  Sizes sizes;
  MORACLE_TRY(sizes.first, config.integer({"moe_layer_start_index"}, 0));
  MORACLE_TRY(sizes.last, config.integer({"moe_layer_end_index"}, -1));
  if (sizes.last == -1) sizes.last = num_layers - 1;
  MORACLE_TRY(sizes.interval, config.integer({"moe_layer_interval"}, 1));
  MORACLE_TRY(sizes.dense_intermediate, config.integer({"intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(const int64_t num_shared, config.integer({"moe_num_shared_experts"}, 0, 1 << 10));
  MORACLE_TRY(const int64_t one, config.integer({"moe_intermediate_size"}, 1, 1 << 20));
  sizes.shared_intermediate = num_shared * one;
  MORACLE_TRY(const double least, config.number({"moe_norm_min"}));
  if (least > 1e-9) {
    return config.unsupported({"moe_norm_min"}, "at most 1e-9, less than any sum of weights",
                              str("it is ", least));
  }
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"use_bias"}));
  if (biased) return config.unsupported({"use_bias"}, "false", "it is true");
  return sizes;
}

Result<RouterDescription> describe_biased_router(const Checkpoint& checkpoint,
                                                 const std::string& mlp, int64_t layer,
                                                 LayerSpec& experts) {
  experts.routing.correction_bias = false;  // the tensor has another shape than elsewhere
  MORACLE_TRY(RouterDescription router, describe_router(checkpoint, mlp + ".gate", experts));
  const std::string name = of_layer(checkpoint.state(), kBias, layer);
  MORACLE_TRY(const TensorView bias, checkpoint.tensor(name));
  const Tensors& tensors = checkpoint.state().tensors;
  if (bias.shape != std::vector<int64_t>{1, experts.num_experts})
    return tensors.wrong(name, str("shape [1, ", experts.num_experts, "]"),
                         "it is " + to_string(bias));
  MORACLE_TRY(router.correction_bias, read_scales(tensors, name));
  experts.routing.correction_bias = true;
  return router;
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                        const GroupedQuerySpec& heads, const Sizes& sizes,
                                        int64_t layer) {
  const std::string prefix = layer_prefix(checkpoint, layer), mlp = prefix + "mlp";
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, prefix + "self_attn.", spec, heads));
  if (sizes.is_dense(layer)) {
    MORACLE_TRY(DescribedWeights weights,
                describe_dense_mlp(checkpoint, mlp, spec, sizes.dense_intermediate));
    return describe_decoder_layer(checkpoint, spec, layer, std::move(attention),
                                  std::move(weights));
  }
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  MORACLE_TRY(RouterDescription router,
              describe_biased_router(checkpoint, mlp, layer, experts.spec));
  std::optional<SharedExpertDescription> shared;
  if (sizes.shared_intermediate > 0) {
    MORACLE_TRY(shared, describe_shared_expert(checkpoint, mlp + ".shared_experts", "", spec,
                                               sizes.shared_intermediate));
  }
  return describe_decoder_layer(checkpoint, spec, layer, std::move(attention), std::move(experts),
                                std::move(router), std::move(shared));
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec spec, read_decoder_spec(config));
  MORACLE_TRY(GroupedQuerySpec heads, read_grouped_query(config, spec));
  heads.rotary.interleaved = true;
  MORACLE_TRY(const Sizes sizes, read_sizes(config, checkpoint.num_layers()));
  return describe_decoder(checkpoint, spec, [&](int64_t layer) {
    return describe_layer(checkpoint, spec, heads, sizes, layer);
  });
}

constexpr GgufKey kGgufKeys[] = {
    {"expert_count", "moe_num_experts"},
    {"expert_used_count", "moe_k"},
    {"feed_forward_length", "intermediate_size"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_count", "moe_num_shared_experts"},
    {"interleave_moe_layer_step", "moe_layer_interval"},
    {"leading_dense_block_count", "moe_layer_start_index", false},
};
constexpr GgufTensor kGgufTensors[] = {
    {"blk.{L}.ffn_gate_shexp", "model.layers.{L}.mlp.shared_experts.gate_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.mlp.shared_experts.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.mlp.shared_experts.down_proj"},
    {"blk.{L}.exp_probs_b.bias", "model.layers.{L}.mlp.moe_statics.e_score_correction_bias"},
};
Status finish_gguf(GgufModel& model) {
  reshape(model, ".e_score_correction_bias", [](const TensorView& stored) {
    return stored.shape.size() == 1 ? std::vector<int64_t>{1, stored.shape[0]} : stored.shape;
  });
  return {};
}
Status write_gguf(GgufDraft& draft) {
  MORACLE_TRY(const int64_t size, draft.config.integer({"moe_intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(const int64_t shared, draft.config.integer({"moe_num_shared_experts"}, 0, 1 << 10));
  if (shared > 0) put_gguf(draft, "expert_shared_feed_forward_length", size * shared);
  return {};
}
constexpr GgufConvention kGguf[] = {{.architecture = "ernie4_5-moe",
                                     .keys = kGgufKeys,
                                     .tensors = kGgufTensors,
                                     .constants = R"({"moe_layer_start_index": 0})",
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace ernie4_5_moe

constinit const Family kErnie45MoeFamily = {.architecture = "Ernie4_5_MoeForCausalLM",
                                            .models = "ERNIE-4.5",
                                            .notes = "without multi-token prediction",
                                            .describe = ernie4_5_moe::describe,
                                            .experts = {.defaults = ernie4_5_moe::kDefaults,
                                                        .num_experts = ernie4_5_moe::kNumExperts,
                                                        .top_k = ernie4_5_moe::kTopK,
                                                        .score = Score::kSoftmax,
                                                        .renormalize = true,
                                                        .renormalize_keys = {},
                                                        .correction_bias = ernie4_5_moe::kBias,
                                                        .gguf = ernie4_5_moe::kGguf}};

}  // namespace moracle
