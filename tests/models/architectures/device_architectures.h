// Runs every architecture as a tiny whole model on a GPU, or an OpenCL device, and compares it with
// transformers in f32. The bound covers bf16 activations.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "models/golden_model.h"
#include "support/device.h"
#include "support/model_words.h"

namespace moracle::testing {

// Some twenty roundings to 8 bits in each of three layers.
inline constexpr double kCloseInBf16 = 5e-2;
// Where two experts score almost alike, rounding may flip a choice of the router. That changes the
// logits of a token by more, and a little those of the tokens after it: one token in so many.
inline constexpr size_t kFlipped = 8;

// The difference without the tokens whose logits differ most.
inline double difference_of_most(const std::vector<float>& got, const std::vector<float>& want,
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

/// Skips the test if the device is not here.
inline void expect_model_matches(const std::string& folder, const GoldenReference& want,
                                 const std::string& device, double close = kCloseInBf16) {
  if (const auto opened = open_test_device(device); !opened)
    GTEST_SKIP() << opened.error().to_string();
  const auto checkpoint = Checkpoint::open(folder);
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  ModelOptions options;
  options.device = testing::device(device);
  options.max_num_tokens = static_cast<int64_t>(want.ids.size());
  auto model = Model::load(*checkpoint, options);
  ASSERT_TRUE(model) << model.error().to_string();
  const auto got = all_logits(*model, want.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  ASSERT_EQ(got->size(), want.logits.size());
  const double difference = difference_of_most(*got, want.logits, want.ids.size());
  // `close` is for three layers. Their errors are independent, so the squares add up.
  const auto layers = static_cast<double>(checkpoint->num_layers());
  EXPECT_LT(difference, close * std::sqrt(std::max(1.0, layers / 3)));
  ::testing::Test::RecordProperty("difference", str(difference));
}
inline void expect_architecture_matches(const std::string& model_name, const std::string& device) {
  expect_model_matches(golden_folder(model_name), golden_reference(model_name), device);
}

}  // namespace moracle::testing
