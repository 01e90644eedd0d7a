// Compares every family's GGUF file, as llama.cpp's converter writes it, with transformers on the
// same values (tests/golden/README.md). Also removes each of its keys and tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "checkpoint/expect_error.h"
#include "checkpoint/experts/convention.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/gguf_writer.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "oracle/backend.h"
#include "support/model_words.h"
#include "support/must.h"
#include "support/sample.h"
#include "support/temporary_folder.h"

namespace moracle::gguf_families_test {
namespace {

using testing::GgufWriter;
using testing::GoldenReference;
using ::testing::HasSubstr;

std::string folder() {
  return testing::golden_dir() + "/gguf/models";
}
std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    if (entry.path().extension() == ".gguf") all.push_back(entry.path().stem().string());
  }
  std::sort(all.begin(), all.end());
  return all;
}

GgufWriter content_of(const std::string& path) {
  const auto file = GgufFile::open(path);
  GgufWriter writer;
  for (const auto& [key, value] : file->metadata.items()) writer.metadata.emplace_back(key, value);
  for (const auto& [name, stored] : file->file.tensors()) {
    testing::TensorBytes tensor{name, stored.view.dtype, stored.view.shape, {}};
    tensor.bytes.resize(stored.view.num_bytes());
    EXPECT_TRUE(file->file.read(name, 0, tensor.bytes));
    writer.tensors.push_back(std::move(tensor));
  }
  return writer;
}

class GgufFamilies : public ::testing::TestWithParam<std::string> {
 protected:
  Result<ModelPlan> plan_of(const GgufWriter& changed) {
    changed.write(changed_);
    MORACLE_TRY(const Checkpoint opened, Checkpoint::open(changed_));
    return plan(opened);
  }
  const std::string path_ = folder() + "/" + GetParam() + ".gguf";
  const testing::TemporaryFolder scratch_;
  const std::string changed_ = scratch_.path() + "/changed.gguf";
};

TEST_P(GgufFamilies, MatchTransformers) {
  const auto file = testing::SafetensorsImage::open(folder() + "/" + GetParam() + ".safetensors");
  const TensorView &ids = file->tensors().at("ids"), &logits = file->tensors().at("logits");
  const std::vector<int32_t> tokens(ids.as<int32_t>(), ids.as<int32_t>() + ids.num_elements());
  const std::span<const float> want(logits.as<float>(), logits.num_elements());
  const auto count = static_cast<int64_t>(tokens.size());
  for (const Backend& backend : backends()) {
    if (!backend.built() || backend.platform != Platform::kCpu) continue;
    ModelOptions named;
    named.backend = testing::backend(backend.name);
    named.threads = 2;
    named.max_num_tokens = count;
    const auto checkpoint = Checkpoint::open(path_);
    ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
    if (!plan(*checkpoint, named) && backend.name != "cpu") continue;
    auto model = Model::load(*checkpoint, named);
    ASSERT_TRUE(model) << model.error().to_string();
    const auto got = testing::all_logits(*model, tokens);
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_LT(testing::relative_difference(*got, want),
              testing::logit_bound(model->choices(), count))
        << backend.name;
  }
}

// Only required keys must be named. An absent optional key has a meaning in the format.
TEST_P(GgufFamilies, NamesEveryMissingKey) {
  const GgufWriter whole = content_of(path_);
  std::string architecture;
  std::set<std::string> required;
  for (const auto& [key, value] : whole.metadata) {
    if (key == "general.architecture") architecture = value.get<std::string>();
  }
  const auto require = [&](std::span<const GgufKey> keys) {
    for (const GgufKey& key : keys) {
      const std::string full = architecture + "." + std::string(key.from);
      if (key.required) required.insert(full);
    }
  };
  const auto opened = Checkpoint::open(path_);
  ASSERT_TRUE(opened) << opened.error().to_string();
  for (const GgufConvention& gguf : find_convention(opened->architecture())->gguf) {
    std::set<std::string_view> own;
    for (const GgufKey& key : gguf.keys) own.insert(key.from);
    require(gguf.keys);
    for (const GgufKey& key : kGgufDecoderKeys) {
      if (!own.contains(key.from)) require({&key, 1});
    }
  }
  required.insert({"general.architecture", architecture + ".block_count"});
  int refused = 0;
  for (const auto& [key, value] : whole.metadata) {
    SCOPED_TRACE(key);
    GgufWriter lacking = whole;
    lacking.remove_key(key);
    const auto result = plan_of(lacking);
    // The absence of other keys has a meaning, which may contradict the tensors.
    if (!required.contains(key)) continue;
    ASSERT_FALSE(result) << "accepted";
    EXPECT_EQ(result.error().kind, ErrorKind::kBadFile) << result.error().to_string();
    EXPECT_THAT(result.error().to_string(), HasSubstr(key));
    ++refused;
  }
  EXPECT_EQ(refused, static_cast<int>(required.size()));
}

// Tensors whose absence has a meaning in the format.
bool may_lack(const std::string& model, const std::string& tensor) {
  return tensor == "output.weight" ||                                        // tied embeddings
         (tensor == "rope_freqs.weight" && model.starts_with("llama")) ||    // plain RoPE
         (model == "gemma4-plain" && tensor == "blk.1.attn_v.weight") ||     // values are keys
         (model == "glm4moe" && tensor.starts_with("blk.2.")) ||             // MTP is not run
         (model == "qwen3moe-fp4-factors" && tensor.ends_with(".scale")) ||  // the factor is 1
         // Without a correction bias it is a file of DeepSeek-V2.
         (model == "deepseek2-glm" && tensor == "blk.1.exp_probs_b.bias");
}

TEST_P(GgufFamilies, NamesEveryMissingTensor) {
  const GgufWriter whole = content_of(path_);
  testing::Sample sample(GetParam());
  for (const testing::TensorBytes& tensor : whole.tensors) {
    if (!sample.takes() || may_lack(GetParam(), tensor.name)) continue;
    SCOPED_TRACE(tensor.name);
    GgufWriter lacking = whole;
    lacking.remove(tensor.name);
    const auto result = plan_of(lacking);
    ASSERT_FALSE(result) << "accepted";
    const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
    const size_t both = module.find("gate_up_exps");  // the message names the usual form
    EXPECT_THAT(result.error().to_string(), HasSubstr(module.substr(0, both)));
  }
}

TEST_P(GgufFamilies, WrongValueOfAnyKeyIsAnErrorOrAnotherModel) {
  const GgufWriter whole = content_of(path_);
  const nlohmann::json wrong[] = {"text", -1, 0, 4294967295u, 1e30, true, {1, 2}, {false}, {"a"}};
  for (const auto& [key, value] : whole.metadata) {
    if (key.starts_with("tokenizer.") || key.starts_with("general.")) continue;
    SCOPED_TRACE(key);
    for (const nlohmann::json& one : wrong) {
      GgufWriter changed = whole;
      changed.set(key, one);
      const auto result = plan_of(changed);
      const std::string message = result ? "accepted" : result.error().to_string();
      EXPECT_NE(message, "");
    }
  }
}

// Its experts have groups only in some files, so that the router would find the fault.
TEST(GgufGroups, NamesTheKeyOfGroupsThatDoNotDivideTheExperts) {
  const GgufWriter whole = content_of(folder() + "/mimo2.gguf");
  const testing::TemporaryFolder scratch;
  const std::string path = scratch.path() + "/changed.gguf";
  const auto error_with = [&](int64_t groups, int64_t best) {
    GgufWriter changed = whole;
    changed.set("mimo2.expert_group_count", groups);
    changed.set("mimo2.expert_group_used_count", best);
    changed.write(path);
    const auto planned = plan(testing::must(Checkpoint::open(path)));
    return planned ? "accepted" : planned.error().to_string();
  };
  EXPECT_THAT(error_with(5, 1), HasSubstr("mimo2.expert_group_count: needs a divisor of"));
  EXPECT_THAT(error_with(8, 1), HasSubstr("mimo2.expert_group_used_count: needs groups with"));
}

// Heads may differ from layer to layer; the context may not.
TEST(GgufConfig, RefusesAnArrayForTheContext) {
  GgufWriter changed = content_of(folder() + "/mimo2.gguf");
  int64_t layers = 0, context = 0;
  for (const auto& [key, value] : changed.metadata) {
    if (key == "mimo2.block_count") layers = value;
    if (key == "mimo2.context_length") context = value;
  }
  changed.set("mimo2.context_length", nlohmann::json::array_t(layers, context));
  const testing::TemporaryFolder scratch;
  changed.write(scratch.path() + "/changed.gguf");
  const auto planned = plan(testing::must(Checkpoint::open(scratch.path() + "/changed.gguf")));
  ASSERT_FALSE(planned);
  EXPECT_THAT(planned.error().to_string(), HasSubstr("mimo2.context_length"));
}

INSTANTIATE_TEST_SUITE_P(Golden, GgufFamilies,
                         ::testing::ValuesIn(testing::sample_of(names(), "GgufFamilies")),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace moracle::gguf_families_test
