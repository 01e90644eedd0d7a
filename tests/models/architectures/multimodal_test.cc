// Tests multimodal files: the language model is read from text_config and its own tensor names, and
// the vision part is listed as left out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "paths.h"
#include "support/must.h"

namespace moracle::multimodal_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::must;
using testing::relative_difference;
using testing::SyntheticCheckpoint;

std::vector<std::string> wrapped_models() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(testing::golden_dir() + "/multimodal"))
    names.push_back("../multimodal/" + entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool is_vision(const std::string& name) {
  return name.find("visual") != name.npos || name.find("vision") != name.npos ||
         name.find("multi_modal") != name.npos || name.starts_with("vit_") ||
         name.starts_with("patch_merge_mlp.");
}

class Multimodal : public ::testing::TestWithParam<std::string> {
 protected:
  const SyntheticCheckpoint whole_ = testing::golden_model(GetParam());
  const testing::GoldenReference want_ = testing::golden_reference(GetParam());
};

TEST_P(Multimodal, LanguageModelMatchesTransformers) {
  const auto got = testing::all_logits(whole_, want_.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_LT(relative_difference(*got, want_.logits), testing::kCloseInF32);
}

TEST_P(Multimodal, OutlineListsVisionAsLeftOut) {
  int64_t tensors = 0;
  for (const auto& [name, tensor] : whole_.tensors) tensors += is_vision(name) ? 1 : 0;
  ASSERT_GT(tensors, 0);
  const auto what = outline(must(whole_.open()));
  ASSERT_TRUE(what) << what.error().to_string();
  const auto part = std::find_if(what->parts.begin(), what->parts.end(), [](const auto& one) {
    return one.what == "vision and audio, not run";
  });
  ASSERT_NE(part, what->parts.end());
  EXPECT_EQ(part->num_tensors, tensors);
  EXPECT_EQ(part->scheme, "not read");
  EXPECT_EQ(what->not_runnable, "");
}

TEST_P(Multimodal, NamesEveryMissingTensorOfTheLanguageModel) {
  for (const auto& [name, tensor] : whole_.tensors) {
    SyntheticCheckpoint lacking = whole_;
    lacking.remove(name);
    const auto planned = plan(must(lacking.open()));
    EXPECT_EQ(planned.ok(), is_vision(name)) << name;
    const bool of_experts =
        name.find(".experts.") != name.npos || name.find(".moe.up_proj") != name.npos;
    if (planned || of_experts) continue;
    EXPECT_THAT(planned.error().to_string(), HasSubstr(name.substr(0, name.rfind('.'))));
  }
}

TEST_P(Multimodal, UnknownTensorIsNamed) {
  SyntheticCheckpoint more = whole_;
  more.add_floats("model.extra.weight", {8});
  const auto planned = plan(must(more.open()));
  ASSERT_FALSE(planned);
  EXPECT_THAT(planned.error().to_string(), HasSubstr("'model.extra.weight'"));
}

TEST_P(Multimodal, MessagesNameKeysInsideTextConfig) {
  SyntheticCheckpoint wrong = whole_;
  wrong.config["text_config"]["hidden_size"] = "wide";
  const auto planned = plan(must(wrong.open()));
  ASSERT_FALSE(planned);
  EXPECT_THAT(planned.error().to_string(), HasSubstr("text_config.hidden_size: needs"));
}

// Kimi-K2.5: DeepSeek-V3 below language_model, with a vision tower beside it.
SyntheticCheckpoint kimi_k25() {
  const SyntheticCheckpoint inner = testing::golden_model("deepseek_v3");
  SyntheticCheckpoint wrapped = inner;
  wrapped.tensors.clear();
  for (const auto& [name, tensor] : inner.tensors) {
    wrapped.tensors["language_model." + name] = tensor;
    wrapped.tensors["language_model." + name].name = "language_model." + name;
  }
  wrapped.add_floats("vision_tower.encoder.blocks.0.mlp.fc0.weight", {8, 8});
  wrapped.add_floats("mm_projector.proj.0.weight", {8, 8});
  wrapped.config = {{"architectures", {"KimiK25ForConditionalGeneration"}},
                    {"model_type", "kimi_k25"},
                    {"text_config", inner.config}};
  return wrapped;
}

TEST(KimiK25, RunsLanguageModelOfWrapper) {
  const testing::GoldenReference want = testing::golden_reference("deepseek_v3");
  for (const char* type : {"deepseek_v3", "kimi_k2"}) {
    SyntheticCheckpoint wrapped = kimi_k25();
    wrapped.config["text_config"]["model_type"] = type;
    const auto got = testing::all_logits(wrapped, want.ids);
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_LT(relative_difference(*got, want.logits), testing::kCloseInF32);
  }
}

// Each wrapper's config may hold the quantization config at either place.
TEST(KimiK25, ReadsQuantizationConfigInsideTextConfig) {
  const json fp8 = {{"quant_method", "fp8"},
                    {"activation_scheme", "dynamic"},
                    {"modules_to_not_convert", json::array()}};
  SyntheticCheckpoint wrapped = kimi_k25();
  const std::string down = "language_model.model.layers.0.mlp.down_proj";
  const std::vector<int64_t> shape = wrapped.at(down + ".weight").shape;
  wrapped.add(down + ".weight", DType::kF8E4M3, shape,
              std::vector<uint8_t>(static_cast<size_t>(shape[0] * shape[1]), 0x38));
  wrapped.add(down + ".weight_scale", DType::kF32, {1}, std::vector<float>{0.5f});
  EXPECT_FALSE(must(wrapped.open()).linear({down}).ok());
  for (const bool inside : {true, false}) {
    SyntheticCheckpoint told = wrapped;
    (inside ? told.config["text_config"] : told.config)["quantization_config"] = fp8;
    const Checkpoint opened = must(told.open());
    EXPECT_EQ(opened.producer(), "fp8");
    EXPECT_EQ(name(must(opened.linear({down})).scheme()), "fp8-w8a8-tensor");
  }
  wrapped.config["text_config"]["quantization_config"] = {{"quant_method", "none"}};
  const auto refused = wrapped.open();
  ASSERT_FALSE(refused);
  EXPECT_THAT(
      refused.error().to_string(),
      HasSubstr("/config.json: text_config.quantization_config.quant_method: needs one of"));
}

INSTANTIATE_TEST_SUITE_P(Golden, Multimodal, ::testing::ValuesIn(wrapped_models()),
                         [](const auto& tested) {
                           return tested.param.substr(tested.param.rfind('/') + 1);
                         });

}  // namespace
}  // namespace moracle::multimodal_test
