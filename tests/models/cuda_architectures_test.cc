// Compares every architecture as a tiny whole model on a GPU with transformers in f32. The bound
// covers bf16 activations.
#include <gtest/gtest.h>

#include <algorithm>

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

// Some twenty roundings to 8 bits in each of three layers.
constexpr double kClose = 5e-2;
// Where two experts score almost alike, rounding may flip a choice of the router. That changes the
// logits of a token by more, and a little those of the tokens after it: one token in so many.
constexpr size_t kFlipped = 8;

// The difference without the tokens whose logits differ most.
double difference_of_most(const std::vector<float>& got, const std::vector<float>& want,
                          size_t tokens) {
  const size_t cols = want.size() / tokens;
  const auto row = [&](const std::vector<float>& all, size_t t) {
    return std::vector<float>(all.begin() + t * cols, all.begin() + (t + 1) * cols);
  };
  std::vector<std::pair<double, size_t>> order;
  for (size_t t = 0; t < tokens; ++t)
    order.emplace_back(relative_difference(row(got, t), row(want, t)), t);
  std::sort(order.begin(), order.end());
  order.resize(tokens - tokens / kFlipped);
  std::vector<float> some, wanted;
  for (const auto& [difference, t] : order) {
    some.insert(some.end(), got.begin() + t * cols, got.begin() + (t + 1) * cols);
    wanted.insert(wanted.end(), want.begin() + t * cols, want.begin() + (t + 1) * cols);
  }
  return relative_difference(some, wanted);
}

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
  ASSERT_EQ(got->size(), want.logits.size());
  const double difference = difference_of_most(*got, want.logits, want.ids.size());
  EXPECT_LT(difference, kClose);
  RecordProperty("difference", str(difference));
}

INSTANTIATE_TEST_SUITE_P(OnGpu, CudaArchitectures, ::testing::ValuesIn(testing::golden_models()),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace moracle::cuda_architectures_test
