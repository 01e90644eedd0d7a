// Families of which only the experts can be used: their routing is known, and nothing describes the
// rest of the model. The routing is that of transformers' code for each of them.
#include "models/families/family.h"

namespace moracle {

// The weights of the chosen experts always sum to one: norm_topk_prob is ignored.
constinit const Family kMinimaxFamily = {.architecture = "MiniMaxForCausalLM",
                                         .models = "MiniMax-Text-01, M1",
                                         .notes = "lacks linear attention",
                                         .experts = {.intermediate_size = kOnlySizeKeys,
                                                     .score = Score::kSoftmax,
                                                     .renormalize = true,
                                                     .renormalize_keys = {}}};

}  // namespace moracle
