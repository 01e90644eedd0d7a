// Reads a checkpoint written by a real tool, if it exists next to the clone.
#pragma once

#include <filesystem>
#include <optional>

#include "paths.h"
#include "reader_fixture.h"

namespace moracle::testing {

inline void expect_finite_rows(const DescribedMatrix& matrix) {
  for (int64_t e = 0; e < matrix.num_experts(); ++e) {
    const CanonicalMatrix expert = must(matrix.expert(e));
    std::vector<double> row(expert.k);
    double largest = 0;
    for (int64_t r = 0; r < expert.n; ++r) {
      dequantize_row(expert, r, row.data());
      for (const double value : row) {
        ASSERT_TRUE(std::isfinite(value)) << "expert " << e << " row " << r;
        largest = std::max(largest, std::abs(value));
      }
    }
    // Trained weights of these models are around 0.1.
    EXPECT_GT(largest, 0.01);
    EXPECT_LT(largest, 10);
  }
}

/// Empty if no full checkpoints exist next to the clone.
inline std::optional<Checkpoint> open_stored(const std::string& directory) {
  const std::string folder = testing::checkpoints_dir() + "/" + directory;
  if (!std::filesystem::exists(folder)) return std::nullopt;
  return must(Checkpoint::open(folder));
}

/// Opens the folder, describes layer 0, and dequantizes attention and every expert of layer 1.
inline void expect_stored(const std::string& directory, const std::string& producer,
                          const std::string& scheme) {
  const auto checkpoint = open_stored(directory);
  if (!checkpoint) GTEST_SKIP() << "no " << directory;
  EXPECT_EQ(checkpoint->producer(), producer);
  EXPECT_EQ(name(must(checkpoint->moe_layer(0)).spec.scheme), scheme);
  const DescribedWeights second = must(checkpoint->moe_layer(1));
  expect_finite_rows(second.w13);
  expect_finite_rows(second.w2);
  const std::string attention = "model.layers.1.self_attn.";
  const DescribedMatrix qkv =
      must(checkpoint->linear({attention + "q_proj", attention + "k_proj", attention + "v_proj"}));
  EXPECT_EQ(name(qkv.scheme()), scheme);
  expect_finite_rows(qkv);
  const DescribedMatrix router = must(checkpoint->router("model.layers.1.mlp.gate"));
  EXPECT_FALSE(router.scheme().weight.quantized());
}

}  // namespace moracle::testing
