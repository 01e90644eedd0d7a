// Tests files of Granite-4.0-H and Nemotron-3 as their publishers write them where transformers
// saves other keys or names, and the keys of Mamba-2 that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "checkpoint/expect_error.h"
#include "models/description.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "support/must.h"
#include "support/temporary_folder.h"

namespace moracle::mamba_families_test {
namespace {

using nlohmann::json;
using testing::golden_model;
using testing::golden_reference;
using testing::must;
using testing::SyntheticCheckpoint;

// The difference of the changed model from transformers' logits.
double difference(const SyntheticCheckpoint& changed, const std::string& name) {
  const testing::GoldenReference want = golden_reference(name);
  const auto got = testing::all_logits(changed, want.ids);
  EXPECT_TRUE(got) << got.error().to_string();
  return got ? testing::relative_difference(*got, want.logits) : INFINITY;
}
Result<ModelPlan> plan_of(const SyntheticCheckpoint& model) {
  MORACLE_TRY(const Checkpoint opened, model.open());
  return plan(opened);
}

// Published configs name layers by letters or by older names, and have num_hidden_layers or not.
TEST(NemotronH, ReadsLayersUnderEveryPublishedKey) {
  SyntheticCheckpoint model = golden_model("nemotron_h");
  for (json& type : model.config["layers_block_type"]) {
    if (type == "linear_attention") type = "mamba";
    if (type == "full_attention") type = "attention";
  }
  EXPECT_LT(difference(model, "nemotron_h"), testing::kCloseInF32);
  model.config.erase("layers_block_type");
  model.config["hybrid_override_pattern"] = "MEM*E-";
  model.config["num_hidden_layers"] = 6;
  EXPECT_LT(difference(model, "nemotron_h"), testing::kCloseInF32);
  model.config["layers_block_type"] = {"mamba", "moe", "mamba", "attention", "moe", "mlp"};
  model.config["hybrid_override_pattern"] = "M-";  // not read beside the list
  EXPECT_LT(difference(model, "nemotron_h"), testing::kCloseInF32);
}

// transformers' names in memory: "model." and one tensor for all experts of a layer.
TEST(NemotronH, ReadsExpertsInOneTensor) {
  SyntheticCheckpoint model = golden_model("nemotron_h");
  for (const char* const name : {"up_proj", "down_proj"}) {
    for (const int layer : {1, 4}) {
      const std::string experts = str("backbone.layers.", layer, ".mixer.experts.");
      testing::TensorBytes all = model.at(str(experts, "0.", name, ".weight"));
      all.shape.insert(all.shape.begin(), 8);
      for (int e = 0; e < 8; ++e) {
        const std::string one = str(experts, e, ".", name, ".weight");
        const auto bytes = model.at(one).bytes;
        if (e > 0) all.bytes.insert(all.bytes.end(), bytes.begin(), bytes.end());
        model.remove(one);
      }
      all.name = experts + name;
      model.tensors[all.name] = all;
    }
  }
  std::vector<std::string> names;
  for (const auto& [name, tensor] : model.tensors) {
    if (name.starts_with("backbone.")) names.push_back(name);
  }
  for (const std::string& name : names) model.rename(name, "model." + name.substr(9));
  EXPECT_LT(difference(model, "nemotron_h"), testing::kCloseInF32);
}

// Python's json module writes Infinity, transformers 5 an object.
TEST(NemotronH, ReadsInfiniteStepLimitInBothForms) {
  const SyntheticCheckpoint model = golden_model("nemotron_h");
  testing::TemporaryFolder folder;
  must(model.write(folder.path()));
  for (const char* const infinity : {"Infinity", "1e308", R"({"__float__": "Infinity"})"}) {
    json config = model.config;
    config["time_step_limit"] = {0.0, "here"};
    std::string text = config.dump();
    text.replace(text.find("\"here\""), 6, infinity);
    std::ofstream(folder.path() + "/config.json") << text;
    const Checkpoint opened = must(Checkpoint::open(folder.path()));
    const auto planned = plan(opened);
    EXPECT_TRUE(planned) << infinity << ": " << planned.error().to_string();
  }
}

// As NVIDIA publishes them: experts, MLPs and the linear layers of Mamba-2 in FP8, beside scales of
// keys and values.
TEST(NemotronH, ReadsModelOptFp8InEveryKindOfLayer) {
  SyntheticCheckpoint model = golden_model("nemotron_h");
  model.files["hf_quant_config.json"] =
      R"({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8",
          "exclude_modules": ["lm_head", "backbone.layers.3.mixer.q_proj",
                              "backbone.layers.3.mixer.k_proj", "backbone.layers.3.mixer.v_proj"]}})";
  std::vector<std::string> modules;
  for (const auto& [name, tensor] : model.tensors) {
    const bool linear = tensor.shape.size() == 2 && name.find(".mixer.") != name.npos;
    const bool plain = name.find("gate.") != name.npos || name.find("q_proj") != name.npos ||
                       name.find("k_proj") != name.npos || name.find("v_proj") != name.npos;
    if (linear && !plain) modules.push_back(name.substr(0, name.rfind('.')));
  }
  for (const std::string& module : modules) {
    const std::vector<int64_t> shape = model.at(module + ".weight").shape;
    model.add(module + ".weight", DType::kF8E4M3, shape,
              std::vector<uint8_t>(static_cast<size_t>(shape[0] * shape[1]), 0x30));
    for (const char* const scale : {".weight_scale", ".input_scale"})
      model.add(module + scale, DType::kF32, {}, std::vector<float>{0.25f});
  }
  for (const char* const scale : {"k_proj.k_scale", "v_proj.v_scale"})
    model.add(str("backbone.layers.3.mixer.", scale), DType::kF32, {}, std::vector<float>{2});
  const Checkpoint opened = must(model.open());
  const Description described = must(describe(opened));
  EXPECT_EQ(described.layers[3].key_scales, std::vector<float>{2});
  const auto& mamba = std::get<Mamba2Description>(described.layers[0].attention);
  EXPECT_TRUE(mamba.in.scheme().weight.quantized() && mamba.o.scheme().weight.quantized());
  EXPECT_TRUE(described.layers[1].mlp->w13.scheme().weight.quantized());
  EXPECT_TRUE(described.layers[5].mlp->w2.scheme().weight.quantized());
  const auto logits = testing::all_logits(model, golden_reference("nemotron_h").ids);
  EXPECT_TRUE(logits) << logits.error().to_string();
}

TEST(NemotronH, LayersForMoreTokensAreLeftOut) {
  SyntheticCheckpoint more = golden_model("nemotron_h");
  more.config["num_nextn_predict_layers"] = 1;
  more.add_floats("mtp.layers.0.eh_proj.weight", {24, 48});
  EXPECT_LT(difference(more, "nemotron_h"), testing::kCloseInF32);
}

// A clamped step changes the logits: the goldens' own limits matter.
TEST(Mamba2Families, StepLimitsMatter) {
  SyntheticCheckpoint granite = golden_model("granite_moe_hybrid_dense"),
                      nemotron = golden_model("nemotron_h_latent");
  granite.config.erase("time_step_limit");
  EXPECT_GT(difference(granite, "granite_moe_hybrid_dense"), 1e-3);
  nemotron.config["time_step_min"] = 0.0;
  EXPECT_GT(difference(nemotron, "nemotron_h_latent"), 1e-4);
}

TEST(GraniteMoeHybrid, SizeOfHeadsMayBeAuto) {
  SyntheticCheckpoint model = golden_model("granite_moe_hybrid");
  model.config["mamba_d_head"] = "auto";
  EXPECT_LT(difference(model, "granite_moe_hybrid"), testing::kCloseInF32);
  model.config.erase("mamba_d_head");
  for (json& type : model.config["layer_types"])
    type = type == "linear_attention" ? "mamba" : "attention";
  EXPECT_LT(difference(model, "granite_moe_hybrid"), testing::kCloseInF32);
}

TEST(Mamba2Families, UnsupportedValueIsRefusedByName) {
  const std::tuple<const char*, json, const char*> cases[] = {
      {"nemotron_h", {{"sliding_window", 5}}, "sliding_window: needs null; it is set"},
      {"nemotron_h", {{"time_step_limit", {0, 1}}}, "time_step_limit: needs 0 and infinity"},
      {"nemotron_h", {{"attention_bias", true}}, "attention_bias: needs false; it is true"},
      {"nemotron_h", {{"mamba_hidden_act", "gelu"}}, "mamba_hidden_act: needs silu; it is gelu"},
      {"nemotron_h", {{"mlp_hidden_act", "swigluoai"}}, "mlp_hidden_act: needs silu, gelu"},
      {"nemotron_h", {{"attention_head_dim", 4}}, "attention_head_dim: needs head_dim, 8; it is 4"},
      {"nemotron_h",
       {{"layers_block_type", {"mamba", "moe", "mamba", "attention", "moe", "conv"}}},
       "it has conv"},
      {"granite_moe_hybrid", {{"hidden_act", "gelu"}}, "hidden_act: needs silu, for Mamba-2"},
      {"granite_moe_hybrid",
       {{"position_embedding_type", "alibi"}},
       "position_embedding_type: needs rope or nope; it is alibi"},
      {"granite_moe_hybrid",
       {{"layer_types", {"mamba", "attention", "conv"}}},
       "layer_types: needs mamba and attention; it has conv"},
  };
  for (const auto& [name, change, line] : cases) {
    SCOPED_TRACE(str(name, ": ", change.dump()));
    SyntheticCheckpoint other = golden_model(name);
    other.config.update(change);
    testing::expect_unsupported(plan_of(other), {"/config.json: ", line});
  }
}

TEST(Mamba2Families, InvalidValueIsNamed) {
  const std::tuple<const char*, json, const char*> cases[] = {
      {"nemotron_h", {{"n_groups", 4}}, "n_groups: needs a divisor of 6 heads; it is 4"},
      {"nemotron_h", {{"time_step_limit", {1, 0}}}, "time_step_limit: needs two numbers from 0"},
      {"nemotron_h", {{"time_step_limit", 1}}, "time_step_limit: needs two numbers from 0"},
      {"nemotron_h", {{"conv_kernel", 1}}, "conv_kernel: needs a whole number from 2 to 16"},
      {"nemotron_h", {{"layers_block_type", json::array()}}, "needs 1 to 10,000 layers"},
      {"granite_moe_hybrid", {{"mamba_n_heads", 5}}, "needs heads of together 48 columns"},
      {"granite_moe_hybrid", {{"layer_types", {"mamba"}}}, "one for each of 3 layers; it has 1"},
  };
  for (const auto& [name, change, line] : cases) {
    SCOPED_TRACE(str(name, ": ", change.dump()));
    SyntheticCheckpoint other = golden_model(name);
    other.config.update(change);
    testing::expect_bad(plan_of(other), {"/config.json: ", line});
  }
}

TEST(Mamba2Families, BiasThatConfigDeclaresIsRequired) {
  for (const auto& [model, tensor] :
       {std::pair{"nemotron_h_latent", "backbone.layers.3.mixer.in_proj.bias"},
        {"nemotron_h_latent", "backbone.layers.1.mixer.fc1_latent_proj.bias"},
        {"nemotron_h_latent", "backbone.layers.1.mixer.shared_experts.up_proj.bias"},
        {"nemotron_h", "backbone.layers.0.mixer.conv1d.bias"},
        {"granite_moe_hybrid_dense", "model.layers.0.mamba.out_proj.bias"}}) {
    SCOPED_TRACE(tensor);
    SyntheticCheckpoint lacking = golden_model(model);
    lacking.remove(tensor);
    testing::expect_bad(plan_of(lacking), {tensor});
  }
}

}  // namespace
}  // namespace moracle::mamba_families_test
