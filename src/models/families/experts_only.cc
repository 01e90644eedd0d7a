// Families of which only the experts can be used: their routing is known, and nothing describes the
// rest of the model. The routing is that of transformers' code for each of them.
#include "models/families/family.h"

namespace moracle {
namespace experts_only {
namespace {

// The defaults of transformers' MiniMaxConfig.
constexpr std::string_view kMinimaxDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "num_experts_per_tok": 2, "num_local_experts": 8, "router_jitter_noise": 0.0,
  "rope_theta": 1000000.0
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
