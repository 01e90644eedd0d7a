// Families of which only the experts can be used: their routing is known, and nothing describes the
// rest of the model. The routing is that of transformers' code for each of them.
#include "models/families/family.h"

namespace moracle {
namespace experts_only {
namespace {

constexpr const char* kRouteScale[] = {"route_scale"};

// Sigmoids with a correction bias, as DeepSeek-V3 routes.
constexpr ExpertConvention kBiasedSigmoids = {.score = Score::kSigmoid, .renormalize = true};
// The weights of the chosen experts always sum to one: norm_topk_prob is ignored.
constexpr ExpertConvention kSoftmax = {.intermediate_size = kOnlySizeKeys,
                                       .score = Score::kSoftmax,
                                       .renormalize = true,
                                       .renormalize_keys = {}};

}  // namespace
}  // namespace experts_only

// Arcee Trinity.
constinit const Family kAfmoeFamily = {
    .architecture = "AfmoeForCausalLM",
    .models = "Trinity",
    .notes = "lacks gated attention",
    .experts = {.score = Score::kSigmoid,
                .renormalize = true,
                .renormalize_keys = {},
                .scaling_factor = experts_only::kRouteScale,
                .correction_bias = "model.layers.{L}.mlp.expert_bias"}};
constinit const Family kDeepseekV32Family = {.architecture = "DeepseekV32ForCausalLM",
                                             .models = "DeepSeek-V3.2",
                                             .notes = "lacks sparse attention",
                                             .experts = experts_only::kBiasedSigmoids};
// GLM-5.
constinit const Family kGlmMoeDsaFamily = {.architecture = "GlmMoeDsaForCausalLM",
                                           .models = "GLM-5",
                                           .notes = "lacks sparse attention",
                                           .experts = experts_only::kBiasedSigmoids};
constinit const Family kMinimaxFamily = {.architecture = "MiniMaxForCausalLM",
                                         .models = "MiniMax-Text-01, M1",
                                         .notes = "lacks linear attention",
                                         .experts = experts_only::kSoftmax};

}  // namespace moracle
