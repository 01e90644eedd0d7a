// MiniMax-M2: GQA with a norm over all heads of q, and of k; RoPE on a part of each head. Experts
// with sigmoid routing and a correction bias in every layer, renormalized.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace minimax_m2 {
namespace {

// The defaults of transformers' MiniMaxM2Config.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
  "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 196608, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
  "num_experts_per_tok": 8, "num_local_experts": 256, "rope_theta": 5000000.0
})";

constexpr std::string_view kBias = "model.layers.{L}.block_sparse_moe.e_score_correction_bias";

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                        const GroupedQuerySpec& heads, int64_t layer) {
  const std::string prefix = layer_prefix(checkpoint, layer);
  const std::string self_attn = prefix + "self_attn.";
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, self_attn, spec, heads));
  MORACLE_CHECK(describe_norms_over_heads(checkpoint, self_attn, attention));
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  experts.spec.routing.correction_bias = true;  // a file without it is incomplete
  MORACLE_TRY(RouterDescription router,
              describe_router(checkpoint, prefix + "block_sparse_moe.gate", experts.spec,
                              of_layer(checkpoint.state(), kBias, layer)));
  return describe_decoder_layer(checkpoint, spec, layer, std::move(attention), std::move(experts),
                                std::move(router));
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec spec, read_decoder_spec(config));
  // Published files give the rotated columns, newer files of transformers their share.
  MORACLE_TRY(const int64_t head_dim, config.integer({"head_dim"}, 2, 1 << 16));
  MORACLE_TRY(const int64_t rotated, config.integer_or(head_dim, {"rotary_dim"}, 2, head_dim));
  const double fraction = static_cast<double>(rotated) / static_cast<double>(head_dim);
  MORACLE_TRY(const GroupedQuerySpec heads,
              read_grouped_query(config, spec, true, {.partial = true, .fraction = fraction}));
  MORACLE_TRY(const bool qk_norm, config.boolean_or(true, {"use_qk_norm"}));
  if (!qk_norm) return config.unsupported({"use_qk_norm"}, "true", "it is false");
  return describe_decoder(checkpoint, spec, [&](int64_t layer) {
    return describe_layer(checkpoint, spec, heads, layer);
  });
}

constexpr GgufKey kGgufKeys[] = {
    {"expert_feed_forward_length", "intermediate_size"},
    {"attention.key_length", "head_dim"},
    {"rope.dimension_count", "rotary_dim"},
};
constexpr GgufTensor kOwnGgufTensors[] = {
    {"blk.{L}.exp_probs_b.bias", "model.layers.{L}.block_sparse_moe.e_score_correction_bias"},
};
constexpr auto kGgufTensors = joined(kOwnGgufTensors, kBlockSparseGgufTensors);
Status finish_gguf(GgufModel& model) {
  return require_gating(model, GgufGating::kSigmoid);
}
Status write_gguf(GgufDraft& draft) {
  const bool partial = draft.rope && draft.rope->has({"partial_rotary_factor"});
  if (partial || !draft.config.has({"rotary_dim"})) MORACLE_CHECK(put_partial_rotary(draft));
  return put_sigmoid_gating(draft);
}
constexpr GgufConvention kGguf[] = {{.architecture = "minimax-m2",
                                     .keys = kGgufKeys,
                                     .tensors = kGgufTensors,
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace minimax_m2

constinit const Family kMinimaxM2Family = {.architecture = "MiniMaxM2ForCausalLM",
                                           .models = "MiniMax-M2",
                                           .describe = minimax_m2::describe,
                                           .experts = {.defaults = minimax_m2::kDefaults,
                                                       .intermediate_size = kOnlySizeKeys,
                                                       .score = Score::kSigmoid,
                                                       .renormalize = true,
                                                       .renormalize_keys = {},
                                                       .correction_bias = minimax_m2::kBias,
                                                       .gguf = minimax_m2::kGguf}};

}  // namespace moracle
