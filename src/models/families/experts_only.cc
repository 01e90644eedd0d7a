// Families of which only the experts can be used: their routing is known, and nothing describes the
// rest of the model. The routing is that of transformers' code for each of them.
#include "models/families/family.h"

namespace moracle {
namespace experts_only {
namespace {

// The defaults of transformers' MiniMaxM3VLTextConfig.
constexpr std::string_view kMinimaxM3Defaults = R"({
  "hidden_size": 6144, "intermediate_size": 3072, "num_hidden_layers": 60,
  "num_experts_per_tok": 4, "num_local_experts": 128, "routed_scaling_factor": 2.0,
  "swiglu_alpha": 1.702, "swiglu_limit": 7.0
})";
constexpr std::string_view kMinimaxM3Bias =
    "model.layers.{L}.block_sparse_moe.e_score_correction_bias";

}  // namespace
}  // namespace experts_only

// The weights of the chosen experts always sum to one before the scaling factor.
constinit const Family kMinimaxM3Family = {
    .architecture = "MiniMaxM3ForCausalLM",
    .multimodal = "MiniMaxM3SparseForConditionalGeneration",
    .models = "MiniMax-M3",
    .notes = "lacks attention to selected blocks of keys",
    .experts = {.defaults = experts_only::kMinimaxM3Defaults,
                .intermediate_size = kOnlySizeKeys,
                .score = Score::kSigmoid,
                .renormalize = true,
                .renormalize_keys = {},
                .correction_bias = experts_only::kMinimaxM3Bias,
                .activation = Activation::kSwigluOai}};

}  // namespace moracle
