// Tests adapters of experts and linear layers on quantized models on a GPU, against the reference
// on the CPU.
#include <gtest/gtest.h>

#include "quantized_adapters.h"
#include "support/model_words.h"

namespace moracle::cuda_quantized_adapters_test {
namespace {

using testing::must;
using testing::relative_difference;

class CudaQuantizedAdapters : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const auto device = open_device("cuda"); !device)
      GTEST_SKIP() << device.error().to_string();
  }
};

TEST_P(CudaQuantizedAdapters, AgreeWithTheCpu) {
  const testing::TemporaryFolder one, other;
  testing::write_adapter_of_all(one, 1);
  testing::write_adapter_of_all(other, -1);
  const auto quantized = testing::adapted_checkpoint(GetParam());
  const Checkpoint opened = must(quantized.open());
  const auto logits = [&](const char* device, const char* backend) {
    Model model = must(Model::load(opened, {.backend = testing::backend(backend),
                                            .device = testing::device(device),
                                            .threads = 2,
                                            .adapters = {one.path(), other.path()}}));
    return testing::adapted_logits(model);
  };
  const auto want = logits("cpu", "reference");
  for (const char* backend : {"auto", "cuda-reference"}) {
    const auto got = logits("cuda", backend);
    for (size_t s = 0; s < 3; ++s)  // a GPU's activations are bf16
      EXPECT_LT(relative_difference(got[s], want[s]), 0.05) << backend << ", sequence " << s;
    EXPECT_GT(relative_difference(got[0], got[1]), 0.05) << backend;
    EXPECT_GT(relative_difference(got[2], got[0]), 0.05) << backend;
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, CudaQuantizedAdapters, ::testing::ValuesIn(testing::kAdaptedForms),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace moracle::cuda_quantized_adapters_test
