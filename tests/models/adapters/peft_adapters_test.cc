// Compares models with adapters that PEFT wrote with the logits that PEFT computes
// (tests/golden/README.md), on every CPU backend and with one adapter per sequence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/text.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "paths.h"
#include "support/model_words.h"
#include "support/must.h"

namespace moracle::peft_adapters_test {
namespace {

using ::testing::HasSubstr;
using testing::logit_bound;
using testing::must;
using testing::relative_difference;

std::vector<std::string> adapters() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(testing::golden_dir() + "/adapters"))
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
    return Model::load(checkpoint,
                       {.backend = testing::backend(backend), .threads = 2, .adapters = {folder_}});
  }
  Result<std::vector<float>> logits(Model& model, int32_t adapter) {
    const auto count = static_cast<int64_t>(ids_.size());
    MORACLE_TRY(KvCache cache, model.make_cache(count));
    const Model::Step step{ids_, &cache, adapter};
    MORACLE_CHECK(model.forward({&step, 1}));
    MORACLE_TRY(const std::span<const float> all, model.logits(0, count));
    return std::vector<float>(all.begin(), all.end());
  }

  const std::string folder_ = testing::golden_dir() + "/adapters/" + GetParam();
  std::string base_;
  std::vector<int32_t> ids_;
  std::vector<float> want_;
};

TEST_P(PeftAdapters, MatchPeftAndDoNotChangeOtherSequences) {
  const std::vector<float> plain = testing::golden_reference(base_).logits;
  for (const char* backend : {"reference", "cpu"}) {
    auto model = load(backend);
    ASSERT_TRUE(model) << model.error().to_string();
    const auto adapted = logits(*model, 0), without = logits(*model, -1);
    ASSERT_TRUE(adapted && without);
    const double bound = logit_bound(model->choices(), static_cast<int64_t>(ids_.size()));
    EXPECT_LT(relative_difference(*adapted, want_), bound) << backend;
    EXPECT_LT(relative_difference(*without, plain), bound) << backend;
    EXPECT_GT(relative_difference(*without, want_), 0.05) << backend;
  }
}

// Rows of a step have the adapter of their sequence, in every slot.
TEST_P(PeftAdapters, SequencesOfOneStepKeepTheirAdapters) {
  const Checkpoint checkpoint = must(Checkpoint::open(testing::golden_folder(base_)));
  auto model = Model::load(
      checkpoint,
      {.backend = testing::backend("cpu"), .threads = 2, .adapters = {folder_, folder_}});
  ASSERT_TRUE(model) << model.error().to_string();
  const std::vector<float> plain = testing::golden_reference(base_).logits;
  const auto count = static_cast<int64_t>(ids_.size());
  KvCache caches[] = {must(model->make_cache(count)), must(model->make_cache(count)),
                      must(model->make_cache(count))};
  const Model::Step steps[] = {
      {ids_, &caches[0], 1}, {ids_, &caches[1], -1}, {ids_, &caches[2], 0}};
  ASSERT_TRUE(model->forward(steps).ok());
  for (int64_t s = 0; s < 3; ++s) {
    const auto got = model->logits(s * count, count);
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_LT(relative_difference(*got, s == 1 ? plain : want_),
              logit_bound(model->choices(), count))
        << "sequence " << s;
  }
}

TEST_P(PeftAdapters, PlanCountsMemoryOfAdapters) {
  const Checkpoint checkpoint = must(Checkpoint::open(testing::golden_folder(base_)));
  const ModelOptions options{.threads = 2, .adapters = {folder_, folder_}};
  const auto planned = plan(checkpoint, options), without = plan(checkpoint, {.threads = 2});
  const auto model = Model::load(checkpoint, options);
  ASSERT_TRUE(planned && without && model);
  EXPECT_EQ(planned->weight_bytes, model->weight_bytes());
  EXPECT_GT(planned->weight_bytes, without->weight_bytes);
}

TEST_P(PeftAdapters, TensorOfAnotherModuleIsNamed) {
  const testing::TemporaryFolder folder;
  std::filesystem::copy(folder_ + "/adapter_config.json", folder.path() + "/adapter_config.json");
  const auto file = must(testing::SafetensorsImage::open(folder_ + "/adapter_model.safetensors"));
  std::vector<testing::TensorBytes> tensors;
  for (const auto& [name, view] : file.tensors())
    tensors.push_back({name, view.dtype, view.shape, {view.data, view.data + view.num_bytes()}});
  const std::string other = "base_model.model.model.layers.0.mlp.extra.lora_A.weight";
  tensors.push_back({other, DType::kF32, {1, 2}, std::vector<std::byte>(8)});
  must(testing::write_safetensors(folder.path() + "/adapter_model.safetensors", tensors));
  const Checkpoint checkpoint = must(Checkpoint::open(testing::golden_folder(base_)));
  const auto opened = LoraAdapter::open(folder.path(), checkpoint);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(opened.error().to_string(), HasSubstr("'" + other + "'"));
}

// PEFT stores the base of an adapted lm_head beside the adapter.
TEST(PeftAdapter, RejectsOutputLayerOfAnotherBase) {
  const std::string from = testing::golden_dir() + "/adapters/head_with_bias";
  for (const char* part : {"weight", "bias"}) {
    const testing::TemporaryFolder folder;
    std::filesystem::copy(from + "/adapter_config.json", folder.path() + "/adapter_config.json");
    const auto file = must(testing::SafetensorsImage::open(from + "/adapter_model.safetensors"));
    const std::string base = str("base_model.model.lm_head.base_layer.", part);
    std::vector<testing::TensorBytes> tensors;
    for (const auto& [name, view] : file.tensors()) {
      tensors.push_back({name, view.dtype, view.shape, {view.data, view.data + view.num_bytes()}});
      if (name == base) tensors.back().bytes[3] ^= std::byte{0x80};  // the sign of a number
    }
    must(testing::write_safetensors(folder.path() + "/adapter_model.safetensors", tensors));
    const Checkpoint checkpoint = must(Checkpoint::open(testing::golden_folder("phimoe")));
    const auto opened = LoraAdapter::open(folder.path(), checkpoint);
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().to_string(), HasSubstr("'" + base + "'"));
    EXPECT_THAT(opened.error().to_string(), HasSubstr("in the checkpoint; it differs"));
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, PeftAdapters, ::testing::ValuesIn(adapters()),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace moracle::peft_adapters_test
