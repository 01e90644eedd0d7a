// Qwen3-Next: gated DeltaNet and gated attention. The projections of gated DeltaNet are stored key
// head by key head. The layers for multi-token prediction are not run.
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/hybrid_moe.h"

namespace moracle {
namespace qwen3_next {
namespace {

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(HybridMoe spec, read_hybrid_moe(checkpoint.state().config, checkpoint.num_layers()));
  GatedDeltaSpec& delta = spec.delta;
  delta.by_key_head = true;
  const DeltaModules modules{{"in_proj_qkvz"},
                             {"in_proj_ba"},
                             {delta.mixed() + delta.values()},
                             {2 * delta.num_value_heads}};
  return describe_decoder(checkpoint, spec.decoder, [&](int64_t layer) {
    return describe_hybrid_layer(checkpoint, spec, layer, modules);
  });
}

}  // namespace
}  // namespace qwen3_next

constinit const Family kQwen3NextFamily = {
    .architecture = "Qwen3NextForCausalLM",
    .models = "Qwen3-Next",
    .notes = "without multi-token prediction",
    .describe = qwen3_next::describe,
    .experts = {.score = Score::kSoftmax, .renormalize = true}};

}  // namespace moracle
