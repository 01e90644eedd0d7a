// Families of which only the experts can be used: their routing is known, and nothing describes the
// rest of the model. The routing is that of transformers' code for each of them.
#include "models/families/family.h"

namespace moracle {
namespace experts_only {
namespace {

// The defaults of transformers' MiniMaxConfig.
constexpr std::string_view kMinimaxDefaults = R"({
  "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "hidden_act": "silu",
  "num_experts_per_tok": 2, "num_local_experts": 8
})";

}  // namespace
}  // namespace experts_only

// The weights of the chosen experts always sum to one: norm_topk_prob is ignored.
constinit const Family kMinimaxFamily = {.architecture = "MiniMaxForCausalLM",
                                         .models = "MiniMax-Text-01, M1",
                                         .notes = "lacks linear attention",
                                         .experts = {.defaults = experts_only::kMinimaxDefaults,
                                                     .intermediate_size = kOnlySizeKeys,
                                                     .score = Score::kSoftmax,
                                                     .renormalize = true,
                                                     .renormalize_keys = {}}};

}  // namespace moracle
