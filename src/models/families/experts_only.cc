// Families of which only the experts can be used: their routing is known, and nothing describes the
// rest of the model. The routing is that of transformers' code for each of them.
#include "models/families/family.h"

namespace moracle {
namespace experts_only {
namespace {

// The defaults of transformers' Qwen4ExpTextConfig.
constexpr std::string_view kQwen4ExpDefaults = R"({
  "hidden_size": 2048, "num_hidden_layers": 40, "hidden_act": "silu",
  "moe_intermediate_size": 512, "num_experts_per_tok": 10, "num_experts": 512,
  "norm_topk_prob": true
})";

}  // namespace
}  // namespace experts_only

constinit const Family kQwen4ExpFamily = {
    .architecture = "Qwen4ExpForCausalLM",
    .multimodal = "Qwen4ExpForConditionalGeneration",
    .models = "Qwen3.8-Flash-Next",
    .notes =
        "lacks several gated residual streams, an indexer of averaged keys and embeddings of "
        "n-grams",
    .experts = {.defaults = experts_only::kQwen4ExpDefaults, .score = Score::kSoftmax}};

}  // namespace moracle
