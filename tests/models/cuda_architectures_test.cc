// Compares every architecture as a tiny whole model on a GPU with transformers in f32. The bound
// covers bf16 activations.
#include <gtest/gtest.h>

#include "base/text.h"
#include "golden_model.h"
#include "models/operations.h"
#include "moracle/device.h"

namespace moracle::cuda_architectures_test {
namespace {

using testing::all_logits;
using testing::golden_folder;
using testing::golden_reference;
using testing::GoldenReference;
using testing::relative_difference;

// Some twenty roundings to 8 bits in each of three layers, plus flipped router choices.
constexpr double kClose = 5e-2;

class CudaArchitectures : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaArchitectures, MatchTransformers) {
  if (const auto device = open_device("cuda"); !device) GTEST_SKIP() << device.error().to_string();
  const GoldenReference want = golden_reference(GetParam());
  const auto checkpoint = Checkpoint::open(golden_folder(GetParam()));
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  ModelOptions options;
  options.device = "cuda";
  options.max_num_tokens = static_cast<int64_t>(want.ids.size());
  if (const auto runs = check_operations(*describe(*checkpoint), Platform::kCuda); !runs)
    GTEST_SKIP() << runs.error().to_string();
  auto model = Model::load(*checkpoint, options);
  ASSERT_TRUE(model) << model.error().to_string();
  const auto got = all_logits(*model, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  const double difference = relative_difference(*got, want.logits);
  EXPECT_LT(difference, kClose);
  RecordProperty("difference", str(difference));
}

INSTANTIATE_TEST_SUITE_P(OnGpu, CudaArchitectures, ::testing::ValuesIn(testing::golden_models()),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace moracle::cuda_architectures_test
