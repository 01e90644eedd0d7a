// Compares models with adapters that llama.cpp's converter wrote with the logits that transformers
// computes with the same adapters (tests/golden/README.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "paths.h"
#include "support/model_words.h"
#include "support/must.h"

namespace moracle::gguf_adapters_test {
namespace {

using testing::must;
using testing::relative_difference;

std::string file(const char* folder, const std::string& name, const char* ending) {
  return str(testing::golden_dir(), "/gguf/", folder, "/", name, ending);
}

std::vector<float> stored_logits(const std::string& path) {
  const auto opened = must(testing::SafetensorsImage::open(path));
  const TensorView& logits = opened.tensors().at("logits");
  return {logits.as<float>(), logits.as<float>() + logits.num_elements()};
}

class GgufAdapters : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufAdapters, MatchTransformers) {
  const std::string name = GetParam();
  const auto base = must(testing::SafetensorsImage::open(file("models", name, ".safetensors")));
  const TensorView& ids = base.tensors().at("ids");
  const std::vector<int32_t> tokens(ids.as<int32_t>(), ids.as<int32_t>() + ids.num_elements());
  const auto count = static_cast<int64_t>(tokens.size());
  const std::vector<float> plain = stored_logits(file("models", name, ".safetensors")),
                           want = stored_logits(file("adapters", name, ".safetensors"));
  const Checkpoint checkpoint = must(Checkpoint::open(file("models", name, ".gguf")));
  for (const char* backend : {"reference", "cpu"}) {
    Model model = must(Model::load(checkpoint, {.backend = testing::backend(backend),
                                                .threads = 2,
                                                .adapters = {file("adapters", name, ".gguf")}}));
    const double bound = testing::logit_bound(model.choices(), count);
    for (const int32_t adapter : {0, -1}) {
      KvCache cache = must(model.make_cache(count));
      const Model::Step step{tokens, &cache, adapter};
      must(model.forward({&step, 1}));
      const std::span<const float> logits = must(model.logits(0, count));
      EXPECT_LT(relative_difference(logits, adapter == 0 ? want : plain), bound) << backend;
    }
  }
  EXPECT_GT(relative_difference(plain, want), 0.05);
}

INSTANTIATE_TEST_SUITE_P(Golden, GgufAdapters,
                         ::testing::Values("qwen3moe", "llama", "qwen35moe", "qwen3next"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace moracle::gguf_adapters_test
