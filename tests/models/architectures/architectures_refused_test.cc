// Tests bad tensors and configs of every architecture. Missing, unread, wrongly shaped or unknown
// ones are rejected by name before weights are read.
#include "checkpoint/expect_error.h"
#include "models/golden_model.h"
#include "support/sample.h"

namespace moracle::architectures_refused_test {
namespace {

using nlohmann::json;
using ::testing::AnyOf;
using testing::expect_bad;
using testing::expect_unsupported;
using testing::golden_model;
using ::testing::HasSubstr;
using testing::SyntheticCheckpoint;

Result<ModelPlan> plan_of(const SyntheticCheckpoint& checkpoint) {
  MORACLE_TRY(const Checkpoint opened, checkpoint.open());
  return plan(opened);
}

class BadTensors : public ::testing::TestWithParam<std::string> {
 protected:
  /// The message names the tensor, its module, or the layer whose experts can no longer be
  /// detected.
  static void expect_named(const Result<ModelPlan>& result, const std::string& tensor) {
    ASSERT_FALSE(result.ok()) << "accepted: " << tensor;
    const std::string module = tensor.substr(0, tensor.rfind('.'));
    const std::string layer = tensor.starts_with("model.layers.")
                                  ? "layer " + tensor.substr(13, 1) + ": needs a layer with experts"
                                  : module;
    EXPECT_THAT(result.error().to_string(),
                AnyOf(HasSubstr("'" + tensor + "'"), HasSubstr("'" + module + "'"),
                      HasSubstr(tensor), HasSubstr(layer)));
  }
  /// "model.layers.0.mlp" of "model.layers.0.mlp.gate.weight", "lm_head" of "lm_head.weight".
  static std::string block_of(const std::string& tensor) {
    const std::string module = tensor.substr(0, tensor.rfind('.'));
    return module.substr(0, module.rfind('.'));
  }
  const SyntheticCheckpoint whole_ = golden_model(GetParam());
};

TEST_P(BadTensors, NamesEveryMissingTensor) {
  testing::Sample sample(GetParam());
  for (const auto& [name, tensor] : whole_.tensors) {
    if (!sample.takes()) continue;
    SCOPED_TRACE(name);
    SyntheticCheckpoint lacking = whole_;
    lacking.remove(name);
    expect_named(plan_of(lacking), name);
  }
}

TEST_P(BadTensors, NamesEveryTensorOfWrongShape) {
  testing::Sample sample(GetParam());
  for (const auto& [name, tensor] : whole_.tensors) {
    if (!sample.takes()) continue;
    SCOPED_TRACE(name);
    for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
      SyntheticCheckpoint bent = whole_;
      std::vector<int64_t> shape = tensor.shape;
      shape[axis] += 2;
      bent.reshape(name, shape);
      const auto result = plan_of(bent);
      ASSERT_FALSE(result.ok()) << "accepted with axis " << axis << " longer";
      EXPECT_EQ(result.error().kind, ErrorKind::kBadFile) << result.error().to_string();
      // In a stack, the message may name the next tensor: the first that differs from its
      // neighbours.
      EXPECT_THAT(result.error().to_string(), HasSubstr(block_of(name)));
    }
  }
}

TEST_P(BadTensors, NamesEveryUnreadTensor) {
  for (const char* extra : {"model.layers.0.self_attn.extra.weight", "model.layers.1.mlp.extra",
                            "model.extra.bias", "model.layers.9.input_layernorm.weight"}) {
    SyntheticCheckpoint more = whole_;
    more.add_floats(extra, {24});
    expect_bad(plan_of(more), {std::string("tensor '") + extra + "'", "the model does not use it"});
  }
}

// An unsupported bias is an error and is never skipped silently.
TEST_P(BadTensors, ExtraBiasIsAddedOrRejected) {
  const testing::GoldenReference want = testing::golden_reference(GetParam());
  testing::Sample sample(GetParam());
  int added = 0, refused = 0;
  for (const auto& [name, tensor] : whole_.tensors) {
    if (tensor.shape.size() != 2 || !name.ends_with(".weight")) continue;
    const std::string module = name.substr(0, name.rfind('.')), bias = module + ".bias";
    if (whole_.tensors.contains(bias) || !sample.takes()) continue;
    SCOPED_TRACE(bias);
    SyntheticCheckpoint more = whole_;
    more.add_floats(bias, {tensor.shape[0]});
    const auto logits = testing::all_logits(more, want.ids);
    if (logits) {
      EXPECT_GT(testing::relative_difference(*logits, want.logits), 1e-5);
      ++added;
    } else {
      // By its name, or by a neighbour's that has none and is stacked with it.
      EXPECT_THAT(logits.error().to_string(), AnyOf(HasSubstr(bias), HasSubstr("with bias")));
      EXPECT_EQ(logits.error().kind, ErrorKind::kBadFile);
      ++refused;
    }
  }
  EXPECT_GE(added + refused, 2 / testing::Sample::kStep);
  RecordProperty("added", added);
  RecordProperty("refused", refused);
}

INSTANTIATE_TEST_SUITE_P(Golden, BadTensors,
                         ::testing::ValuesIn(testing::sample_of(testing::golden_models(),
                                                                "BadTensors")),
                         [](const auto& param) { return param.param; });
INSTANTIATE_TEST_SUITE_P(Compressed, BadTensors, ::testing::ValuesIn(testing::compressed_models()),
                         [](const auto& param) { return param.param; });

struct Change {
  const char* model;
  json change;
  const char* line;
};

TEST(ArchitectureConfig, RejectsUnsupportedValueByName) {
  const Change cases[] = {
      {"gpt_oss",
       {{"layer_types", {"chunked_attention", "full_attention"}}},
       "layer_types: needs sliding_attention and full_attention; it has chunked_attention"},
      {"gpt_oss",
       {{"rope_parameters", {{"rope_type", "longrope"}}}},
       "rope_parameters.rope_type: needs default, dynamic, linear, llama3, proportional or "
       "yarn; it is longrope"},
      {"deepseek_v3",
       {{"topk_method", "group_limited_greedy"}},
       "topk_method: needs noaux_tc; it is group_limited_greedy"},
      {"deepseek_v3",
       {{"hidden_act", "tanh"}},
       "hidden_act: needs an activation function with a gate; it is tanh"},
      {"mixtral", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor: needs 1; it is 0.5"},
      {"deepseek_v2", {{"topk_method", "noaux_tc"}}, "greedy or group_limited_greedy; it is noaux"},
      {"deepseek_v2", {{"norm_topk_prob", true}}, "norm_topk_prob: needs false; it is true"},
      {"glm4_moe_lite",
       {{"mlp_layer_types", {"sparse", "linear"}}},
       "mlp_layer_types: needs dense and sparse; it has linear"},
      {"deepseek_v2", {{"scoring_func", "sigmoid"}}, "scoring_func: needs softmax; it is sigmoid"},
      {"deepseek_v3", {{"scoring_func", "softmax"}}, "scoring_func: needs sigmoid; it is softmax"},
      {"deepseek_v32", {{"rope_interleave", false}}, "rope_interleave: needs true; it is false"},
      {"afmoe", {{"n_group", 2}}, "n_group: needs 1; it is 2"},
      {"afmoe", {{"topk_group", 2}}, "topk_group: needs 1; it is 2"},
      {"lfm2_moe", {{"hidden_act", "gelu"}}, "hidden_act: needs silu; it is another one"},
      {"ernie4_5_moe", {{"moe_norm_min", 0.1}}, "moe_norm_min: needs at most 1e-9"},
      {"ernie4_5_moe", {{"use_bias", true}}, "use_bias: needs false; it is true"},
      {"hunyuan_v1_moe", {{"use_cla", true}}, "use_cla: needs false; it is true"},
      {"hunyuan_v1_moe", {{"use_qk_norm", false}}, "use_qk_norm: needs true; it is false"},
      {"hunyuan_v1_moe",
       {{"num_shared_expert", {1, 2}}},
       "num_shared_expert: needs 1 in every layer; it has 2"},
      {"hunyuan_v1_moe", {{"moe_intermediate_size", 8}}, "needs 12 in every layer; it has 8"},
      {"phimoe", {{"num_experts_per_tok", 3}}, "2, the choices of a sparse mixer; it is 3"},
      {"llama4",
       {{"num_experts_per_tok", 2}},
       "num_experts_per_tok: needs 1, because the weight is on the input; it is 2"},
      {"llama4",
       {{"layer_types",
         {"chunked_attention", "full_attention", "sliding_attention", "full_attention"}}},
       "layer_types: needs chunked_attention and full_attention; it has sliding_attention"},
      {"minimax_m2", {{"use_qk_norm", false}}, "use_qk_norm: needs true; it is false"},
      {"olmoe", {{"clip_qkv", 8.0}}, "clip_qkv: needs null; it is set"},
      {"afmoe", {{"attention_bias", true}}, "attention_bias: needs false; it is true"},
      {"lfm2_moe", {{"conv_bias", true}}, "conv_bias: needs false; it is true"},
      {"lfm2_moe",
       {{"layer_types", {"conv", "conv", "conv", "sliding_attention"}}},
       "layer_types: needs conv and full_attention; it has sliding_attention"},
      {"olmoe", {{"use_sliding_window", true}}, "use_sliding_window: needs false; it is true"},
      {"qwen2_moe",
       {{"layer_types", {"full_attention", "sliding_attention"}}},
       "it has sliding_at"},
      {"qwen3_next",
       {{"layer_types", {"linear_attention", "chunked_attention", "full_attention"}}},
       "layer_types: needs linear_attention and full_attention; it has chunked_attention"},
      {"qwen3_next", {{"hidden_act", "gelu"}}, "hidden_act: needs silu, for gated DeltaNet"},
      {"qwen3_5_moe", {{"attn_output_gate", false}}, "attn_output_gate: needs true; it is false"},
  };
  for (const Change& change : cases) {
    SyntheticCheckpoint other = golden_model(change.model);
    other.config.update(change.change);
    expect_unsupported(plan_of(other), {"/config.json: ", change.line});
  }
}

TEST(ArchitectureConfig, NamesKeyOfInvalidValue) {
  const Change cases[] = {
      {"gpt_oss",
       {{"layer_types", {"full_attention"}}},
       "layer_types: needs one for each of 2 layers; it has 1"},
      {"gpt_oss", {{"sliding_window", nullptr}}, "sliding_window: needs a whole number"},
      {"gpt_oss", {{"model_type", "mixtral"}}, "model_type: needs gpt_oss; it is mixtral"},
      {"gpt_oss", {{"swiglu_limit", 0}}, "swiglu_limit: needs a number above 0; it is 0"},
      {"gpt_oss", {{"attention_bias", "yes"}}, "attention_bias: needs true or false"},
      {"mixtral", {{"sliding_window", 0}}, "sliding_window: needs a whole number from 1"},
      {"mixtral", {{"model_type", nullptr}}, "model_type: needs a string"},
      {"deepseek_v3", {{"qk_rope_head_dim", 5}}, "qk_rope_head_dim: needs an even number; it is 5"},
      {"deepseek_v3", {{"kv_lora_rank", nullptr}}, "kv_lora_rank: needs a whole number"},
      {"deepseek_v3", {{"n_group", nullptr}}, "n_group: needs a number; it is missing"},
      {"deepseek_v3", {{"topk_group", 5}}, "topk_group: needs a whole number from 1 to 4; it is 5"},
      {"deepseek_v3",
       {{"routed_scaling_factor", nullptr}},
       "routed_scaling_factor: needs a number"},
      {"deepseek_v3", {{"first_k_dense_replace", nullptr}}, "first_k_dense_replace: needs a whole"},
      {"deepseek_v3",
       {{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 4}, {"mscale", -1}}}},
       "rope_parameters.mscale: needs a number from 0 to 1000000; it is -1"},
      {"hunyuan_v1_moe", {{"moe_topk", {3}}}, "a number, or one for each of 2 layers; it has 1"},
      {"hunyuan_v1_moe",
       {{"moe_topk", {3, 9}}},
       "needs whole numbers from 1 to 8; it is 9 for layer 1"},
      {"hunyuan_v1_moe",
       {{"rope_parameters", {{"rope_type", "dynamic"}, {"alpha", -1}}}},
       "alpha: needs a number above 0; it is -1"},
      {"ernie4_5_moe", {{"moe_num_shared_experts", nullptr}}, "experts: needs a whole number"},
      {"exaone_moe", {{"layer_types", nullptr}}, "sliding_window_pattern: needs a whole number"},
      {"exaone_moe", {{"num_shared_experts", nullptr}}, "num_shared_experts: needs a number"},
      {"qwen2_moe_llama3",
       {{"rope_parameters",
         {{"rope_type", "llama3"},
          {"factor", 2},
          {"low_freq_factor", 4},
          {"high_freq_factor", 3},
          {"original_max_position_embeddings", 24}}}},
       "high_freq_factor: needs at least low_freq_factor, 4; it is 3"},
      {"ernie4_5_moe", {{"rope_parameters", {{"rope_type", "linear"}}}}, "factor: needs a number"},
      {"deepseek_v3", {{"model_type", "deepseek_v2"}}, "needs deepseek_v3 or kimi_k2"},
      {"deepseek_v2", {{"model_type", "deepseek_v3"}}, "model_type: needs deepseek_v2"},
      {"deepseek_v2", {{"topk_method", nullptr}}, "topk_method: needs a string"},
      {"deepseek_v2", {{"n_group", nullptr}}, "n_group: needs a number; it is missing"},
      {"dots1",
       {{"layer_types", nullptr}, {"max_window_layers", nullptr}},
       "max_window_layers: needs a whole number"},
      {"glm4_moe",
       {{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.4}}}},
       "partial_rotary_factor: needs the share of an even number of 8 columns"},
      {"glm4_moe_lite", {{"mlp_layer_types", {"dense"}}}, "needs one for each of 2 layers"},
      {"glm4_moe_lite",
       {{"first_k_dense_replace", 2}},
       "first_k_dense_replace: needs the dense layers of mlp_layer_types; it is 2"},
      {"minimax_m2", {{"rotary_dim", 9}}, "rotary_dim: needs a whole number from 2 to 8"},
      {"qwen3_moe",
       {{"rope_parameters", {{"rope_type", "dynamic"}}}},
       "rope_parameters.factor: needs a number above 0; it is missing"},
      {"qwen3_moe",
       {{"use_sliding_window", true}, {"sliding_window", nullptr}},
       "needs a whole num"},
      {"afmoe", {{"route_scale", nullptr}}, "route_scale: needs a number; it is missing"},
      {"deepseek_v32", {{"index_topk", nullptr}}, "index_topk: needs a whole number"},
      {"granite_moe", {{"logits_scaling", 0}}, "logits_scaling: needs a number above 0; it is 0"},
      {"lfm2_moe", {{"norm_eps", 2}}, "norm_eps: needs a number from 0 to 1; it is 2"},
      {"lfm2_moe", {{"layer_types", {"conv"}}}, "one for each of 4 layers; it has 1"},
      {"qwen3_next", {{"linear_num_value_heads", 3}}, "needs a multiple of 2 key heads; it is 3"},
      {"qwen3_next", {{"linear_conv_kernel_dim", 1}}, "needs a whole number from 2 to 16; it is 1"},
      {"qwen3_next", {{"layer_types", {"full_attention"}}}, "one for each of 3 layers; it has 1"},
      {"qwen2_moe",
       {{"shared_expert_intermediate_size", nullptr}},
       "shared_expert_intermediate_size: needs a whole number"},
  };
  for (const Change& change : cases) {
    SyntheticCheckpoint other = golden_model(change.model);
    other.config.update(change.change);
    expect_bad(plan_of(other), {"/config.json: ", change.line});
  }
}

// Biases are optional in every file format, but a bias that the config declares is required.
TEST(ArchitectureConfig, RejectsMissingBiasThatConfigDeclares) {
  for (const auto& [model, tensor] :
       {std::pair{"gpt_oss", "model.layers.0.self_attn.o_proj.bias"},
        {"gpt_oss", "model.layers.1.mlp.router.bias"},
        {"gpt_oss", "model.layers.1.mlp.experts.down_proj_bias"},
        {"qwen2_moe", "model.layers.0.self_attn.v_proj.bias"},
        {"deepseek_v3_plain_query", "model.layers.1.self_attn.kv_a_proj_with_mqa.bias"}}) {
    SyntheticCheckpoint lacking = golden_model(model);
    lacking.remove(tensor);
    expect_bad(plan_of(lacking), {std::string("tensor '") + tensor + "'", "it is missing"});
  }
}

}  // namespace
}  // namespace moracle::architectures_refused_test
