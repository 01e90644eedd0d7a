// Qwen3.5-MoE and 3.6: as Qwen3-Next with projections of their own for q, k and v, z, b, and a. The
// weights of the chosen experts always sum to one. The layer for multi-token prediction only
// drafts. The vision part is not run.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/recurrent/hybrid_moe.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace qwen3_5_moe {
namespace {

// The defaults of transformers' Qwen3_5MoeTextConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
  "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 32768,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false, "head_dim": 256,
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
  "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
  "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8, "num_experts": 256,
  "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "full_attention_interval": 4
})";

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const HybridMoe spec,
              read_hybrid_moe(checkpoint.state().config, checkpoint.num_layers()));
  const GatedDeltaSpec& delta = spec.delta;
  const DeltaModules modules{{"in_proj_qkv", "in_proj_z"},
                             {"in_proj_b", "in_proj_a"},
                             {delta.mixed(), delta.values()},
                             {delta.num_value_heads, delta.num_value_heads}};
  return describe_decoder(checkpoint, spec.decoder, [&](int64_t layer) {
    return describe_hybrid_layer(checkpoint, spec, layer, modules);
  });
}

constexpr GgufTensor kGgufTensors[] = {
    {"blk.{L}.ssm_beta", "model.layers.{L}.linear_attn.in_proj_b"},
    {"blk.{L}.ssm_alpha", "model.layers.{L}.linear_attn.in_proj_a"},
};
constexpr auto kAllGgufTensors = joined(kHybridGgufTensors, kGgufTensors);

// The converter stores the value heads of this architecture in turns: the first of every key head,
// then the second of every key head.
Status finish_gguf(GgufModel& model) {
  MORACLE_CHECK(finish_hybrid_gguf(model));
  MORACLE_TRY(const int64_t key_heads, gguf_integer(model, "ssm.group_count"));
  MORACLE_TRY(const int64_t value_heads, gguf_integer(model, "ssm.time_step_rank"));
  MORACLE_TRY(const int64_t key_dim, gguf_integer(model, "ssm.state_size"));
  MORACLE_TRY(const int64_t values, gguf_integer(model, "ssm.inner_size"));
  const int64_t value_dim = values / value_heads, keys = 2 * key_heads * key_dim;
  if (value_heads % key_heads != 0 || value_heads == key_heads) return {};
  const auto head = [=](int64_t h) {
    const int64_t per_key = value_heads / key_heads;
    return h % per_key * key_heads + h / per_key;
  };
  const auto value_row = [=](int64_t row) {
    return head(row / value_dim) * value_dim + row % value_dim;
  };
  const auto mixed_row = [=](int64_t row) {
    return row < keys ? row : keys + value_row(row - keys);
  };
  for (const char* name : {"in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"})
    reorder_rows(model, str(".linear_attn.", name), head);
  reorder_rows(model, ".linear_attn.in_proj_z.weight", value_row);
  for (const char* name : {"in_proj_qkv.weight", "conv1d.weight"})
    reorder_rows(model, str(".linear_attn.", name), mixed_row);
  model.config["linear_value_heads_interleaved"] = true;  // columns of out_proj
  return {};
}
// The columns of out_proj belong to the value heads in turns.
Status write_gguf(GgufDraft& draft) {
  MORACLE_CHECK(write_hybrid_gguf(draft));
  MORACLE_TRY(const int64_t key_heads, draft.config.integer({"linear_num_key_heads"}, 1, 1 << 16));
  MORACLE_TRY(const int64_t heads, draft.config.integer({"linear_num_value_heads"}, 1, 1 << 16));
  MORACLE_TRY(const int64_t dim, draft.config.integer({"linear_value_head_dim"}, 1, 1 << 16));
  if (heads % key_heads != 0 || heads == key_heads) return {};
  const auto column = [=](int64_t stored) {
    const int64_t run = stored / dim, per_key = heads / key_heads;
    return (run % key_heads * per_key + run / key_heads) * dim + stored % dim;
  };
  for (auto& [name, entry] : draft.tensors) {
    if (name.ends_with(".linear_attn.out_proj.weight")) entry = gguf_columns(entry, column);
  }
  return {};
}
constexpr GgufConvention kGguf[] = {{.architecture = "qwen35moe",
                                     .keys = kHybridGgufKeys,
                                     .tensors = kAllGgufTensors,
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace qwen3_5_moe

constinit const Family kQwen35MoeFamily = {.architecture = "Qwen3_5MoeForCausalLM",
                                           .multimodal = "Qwen3_5MoeForConditionalGeneration",
                                           .models = "Qwen3.5-MoE, Qwen3.6-MoE",
                                           .notes = "text only, multi-token prediction drafts",
                                           .describe = qwen3_5_moe::describe,
                                           .experts = {.defaults = qwen3_5_moe::kDefaults,
                                                       .score = Score::kSoftmax,
                                                       .renormalize = true,
                                                       .renormalize_keys = {},
                                                       .gguf = qwen3_5_moe::kGguf}};

}  // namespace moracle
