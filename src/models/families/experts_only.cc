// Families of which only the experts can be used: their routing is known, and nothing describes the
// rest of the model. The routing is that of transformers' code for each of them.
#include "models/families/family.h"

namespace moracle {
namespace experts_only {
namespace {

constexpr ExpertNames kGemma4Names[] = {{.experts = "model.layers.{L}.experts", .fused = true}};
constexpr const char* kGemma4TopK[] = {"top_k_experts"};

}  // namespace
}  // namespace experts_only

// The router normalizes its input, and each expert has a scale of its own: the caller must route.
constinit const Family kGemma4Family = {
    .architecture = "Gemma4ForConditionalGeneration",
    .also = "Gemma4ForCausalLM",
    .models = "Gemma-4 MoE",
    .notes =
        "the caller must give the routing; lacks the router's norm and scales, the MLP beside "
        "the experts, head sizes per layer",
    .experts = {.names = experts_only::kGemma4Names,
                .top_k = experts_only::kGemma4TopK,
                .score = Score::kUnknown,
                .activation = Activation::kGeluTanh}};

// The weights of the chosen experts always sum to one: norm_topk_prob is ignored.
constinit const Family kMinimaxFamily = {.architecture = "MiniMaxForCausalLM",
                                         .models = "MiniMax-Text-01, M1",
                                         .notes = "lacks linear attention",
                                         .experts = {.intermediate_size = kOnlySizeKeys,
                                                     .score = Score::kSoftmax,
                                                     .renormalize = true,
                                                     .renormalize_keys = {}}};

}  // namespace moracle
