// Compares every family's GGUF file on an NVIDIA GPU with transformers on the same values.
#include "models/architectures/device_architectures.h"

namespace moracle::cuda_gguf_families_test {
namespace {

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& entry :
       std::filesystem::directory_iterator(testing::golden_dir() + "/gguf/models"))
    if (entry.path().extension() == ".gguf") all.push_back(entry.path().stem().string());
  std::sort(all.begin(), all.end());
  return all;
}

class CudaGgufFamilies : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaGgufFamilies, MatchTransformers) {
  const std::string path = testing::golden_dir() + "/gguf/models/" + GetParam();
  const auto file = testing::SafetensorsImage::open(path + ".safetensors");
  const TensorView &ids = file->tensors().at("ids"), &logits = file->tensors().at("logits");
  testing::expect_model_matches(path + ".gguf",
                                {{ids.as<int32_t>(), ids.as<int32_t>() + ids.num_elements()},
                                 {logits.as<float>(), logits.as<float>() + logits.num_elements()}},
                                "cuda");
}

INSTANTIATE_TEST_SUITE_P(Golden, CudaGgufFamilies, ::testing::ValuesIn(names()),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace moracle::cuda_gguf_families_test
