// Compares tiny whole models that llmcompressor quantized with what it computes with them
// (tests/golden/README.md).
#include <gtest/gtest.h>

#include "base/text.h"
#include "device_architectures.h"
#include "models/logit_bounds.h"
#include "oracle/backend.h"
#include "paths.h"
#include "support/model_words.h"

namespace moracle::quantized_architectures_test {
namespace {

using testing::all_logits;
using testing::GoldenReference;
using testing::relative_difference;

const std::string kFolder = testing::golden_dir() + "/quantized/";

std::vector<std::string> models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}
std::string label(const ::testing::TestParamInfo<std::string>& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class QuantizedArchitectures : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string folder_ = kFolder + GetParam();
  const GoldenReference want_ = testing::reference_in(folder_);
  const int64_t count_ = static_cast<int64_t>(want_.ids.size());
};

TEST_P(QuantizedArchitectures, MatchLlmcompressor) {
  const auto checkpoint = Checkpoint::open(folder_);
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  for (const Backend& backend : backends()) {
    if (!backend.built() || backend.platform != Platform::kCpu) continue;
    ModelOptions named;
    named.backend = testing::backend(backend.name);
    named.threads = 2;
    if (!plan(*checkpoint, named)) continue;
    auto model = Model::load(*checkpoint, named);
    ASSERT_TRUE(model) << model.error().to_string();
    const auto got = all_logits(*model, want_.ids);
    ASSERT_TRUE(got) << got.error().to_string();
    const double difference = relative_difference(*got, want_.logits);
    EXPECT_LT(difference, testing::logit_bound(model->choices(), count_)) << backend.name;
    RecordProperty(std::string(backend.name), str(difference));
  }
}

// Activations that were rounded to bf16 before they become e4m3 get other codes now and then:
// llmcompressor's own results in bf16 are 4 to 9 % away from those in f32.
[[maybe_unused]] double close_in_bf16(const std::string& model) {
  return model.ends_with("fp8-block") ? 2 * testing::kCloseInBf16 : testing::kCloseInBf16;
}

#ifdef MORACLE_WITH_CUDA
class CudaQuantizedArchitectures : public QuantizedArchitectures {};

TEST_P(CudaQuantizedArchitectures, MatchLlmcompressor) {
  testing::expect_model_matches(folder_, want_, "cuda", close_in_bf16(GetParam()));
}
INSTANTIATE_TEST_SUITE_P(Golden, CudaQuantizedArchitectures, ::testing::ValuesIn(models()), label);
#endif

#ifdef MORACLE_WITH_OPENCL
class OpenClQuantizedArchitectures : public QuantizedArchitectures {};

TEST_P(OpenClQuantizedArchitectures, MatchLlmcompressor) {
  testing::expect_model_matches(folder_, want_, testing::opencl_name(), close_in_bf16(GetParam()));
}
// Qwen3-Next has every operation; the others would only compile the same kernels again.
INSTANTIATE_TEST_SUITE_P(Golden, OpenClQuantizedArchitectures,
                         ::testing::Values("qwen3_next-fp8-block", "qwen3_next-w4a16"), label);
#endif

TEST(QuantizedGoldenModels, AreNineFamiliesInTwoSchemes) {
  EXPECT_EQ(models().size(), 14u);
  for (const std::string& name : models()) {
    const auto checkpoint = Checkpoint::open(kFolder + name);
    ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
    // The first layer of Hy3 is dense.
    const auto experts = checkpoint->moe_layer(name.starts_with("hy_v3") ? 1 : 0);
    ASSERT_TRUE(experts) << experts.error().to_string();
    EXPECT_EQ(moracle::name(experts->spec.scheme),
              name.ends_with("w4a16") ? "int4-w4a16-g128" : "fp8-w8a8-block128x128");
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, QuantizedArchitectures, ::testing::ValuesIn(models()), label);

}  // namespace
}  // namespace moracle::quantized_architectures_test
