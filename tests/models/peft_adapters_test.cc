// Compares models with adapters that PEFT wrote with the logits that PEFT computes
// (tests/golden/README.md), on every CPU backend and with one adapter per sequence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/text.h"
#include "golden_model.h"
#include "support/must.h"

namespace moracle::peft_adapters_test {
namespace {

using ::testing::HasSubstr;
using testing::must;
using testing::relative_difference;

constexpr double kClose = 2e-6;

std::vector<std::string> adapters() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(MORACLE_GOLDEN_DIR "/adapters"))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

class PeftAdapters : public ::testing::TestWithParam<std::string> {
 protected:
  PeftAdapters() {
    std::ifstream(folder_ + "/base.txt") >> base_;
    ids_ = testing::golden_reference(base_).ids;
    const auto file = must(testing::SafetensorsImage::open(folder_ + "/reference.safetensors"));
    const TensorView& logits = file.tensors().at("logits");
    want_.assign(logits.as<float>(), logits.as<float>() + logits.num_elements());
  }
  Result<Model> load(const std::string& backend) {
    MORACLE_TRY(const Checkpoint checkpoint, Checkpoint::open(testing::golden_folder(base_)));
    return Model::load(checkpoint, {.backend = backend, .threads = 2, .adapters = {folder_}});
  }
  Result<std::vector<float>> logits(Model& model, int32_t adapter) {
    const auto count = static_cast<int64_t>(ids_.size());
    MORACLE_TRY(KvCache cache, model.make_cache(count));
    const Model::Step step{ids_, &cache, adapter};
    MORACLE_CHECK(model.forward({&step, 1}));
    MORACLE_TRY(const std::span<const float> all, model.logits(0, count));
    return std::vector<float>(all.begin(), all.end());
  }

  const std::string folder_ = MORACLE_GOLDEN_DIR "/adapters/" + GetParam();
  std::string base_;
  std::vector<int32_t> ids_;
  std::vector<float> want_;
};

TEST_P(PeftAdapters, MatchPeftAndLeaveOtherSequencesAlone) {
  const std::vector<float> plain = testing::golden_reference(base_).logits;
  for (const char* backend : {"reference", "cpu"}) {
    auto model = load(backend);
    ASSERT_TRUE(model) << model.error().to_string();
    const auto adapted = logits(*model, 0), without = logits(*model, -1);
    ASSERT_TRUE(adapted && without);
    EXPECT_LT(relative_difference(*adapted, want_), kClose) << backend;
    EXPECT_LT(relative_difference(*without, plain), kClose) << backend;
    EXPECT_GT(relative_difference(*without, want_), 0.05) << backend;
  }
}

TEST_P(PeftAdapters, TensorOfAnotherModuleIsNamed) {
  const testing::TemporaryFolder folder;
  std::filesystem::copy(folder_ + "/adapter_config.json", folder.path() + "/adapter_config.json");
  const auto file = must(testing::SafetensorsImage::open(folder_ + "/adapter_model.safetensors"));
  std::vector<testing::TensorBytes> tensors;
  for (const auto& [name, view] : file.tensors())
    tensors.push_back({name, view.dtype, view.shape, {view.data, view.data + view.num_bytes()}});
  const std::string router = "base_model.model.model.layers.0.mlp.gate.lora_A.weight";
  tensors.push_back({router, DType::kF32, {1, 2}, std::vector<std::byte>(8)});
  must(testing::write_safetensors(folder.path() + "/adapter_model.safetensors", tensors));
  const Checkpoint checkpoint = must(Checkpoint::open(testing::golden_folder(base_)));
  const auto opened = LoraAdapter::open(folder.path(), checkpoint);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(opened.error().to_string(), HasSubstr("'" + router + "'"));
}

INSTANTIATE_TEST_SUITE_P(Golden, PeftAdapters, ::testing::ValuesIn(adapters()),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace moracle::peft_adapters_test
