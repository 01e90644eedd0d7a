// Qwen3.5-MoE and 3.6: as Qwen3-Next with projections of their own for q, k and v, z, b, and a. The
// weights of the chosen experts always sum to one. Layers for multi-token prediction and the vision
// part are not run.
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/hybrid_moe.h"

namespace moracle {
namespace qwen3_5_moe {
namespace {

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

}  // namespace
}  // namespace qwen3_5_moe

constinit const Family kQwen35MoeFamily = {
    .architecture = "Qwen3_5MoeForCausalLM",
    .multimodal = "Qwen3_5MoeForConditionalGeneration",
    .models = "Qwen3.5-MoE, Qwen3.6-MoE",
    .notes = "text only, without multi-token prediction",
    .describe = qwen3_5_moe::describe,
    .experts = {.score = Score::kSoftmax, .renormalize = true, .renormalize_keys = {}}};

}  // namespace moracle
